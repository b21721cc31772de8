"""A Scrapy spider that follows the links of some sites and stores what it reads, for crawl.sh.

crawl-spider.py SEEDS CONCURRENCY OUT SECONDS: robots files obeyed, no pauses, one request a site at a time. Prints pages a second in the
second half of its time: in the first it takes in index pages with tens of thousands of links each, while it asks for nothing.

It is tuned: links by one XPath instead of a LinkExtractor, known URLs in a set instead of a filter of request fingerprints, nothing switched on
that the others do not do either.
"""

import sys
import time
from urllib.parse import urldefrag, urlparse

import scrapy
from scrapy.crawler import CrawlerProcess

seeds = open(sys.argv[1]).read().split()
hosts = {urlparse(url).netloc for url in seeds}
seconds = int(sys.argv[4])
out = open(sys.argv[3], "wb")
known = set(seeds)
began = time.monotonic()
pages = early = 0
LINKS = "//a/@href | //area/@href | //iframe/@src | //frame/@src"


class Spider(scrapy.Spider):
    name = "webbase-benchmark"
    start_urls = seeds

    def parse(self, response):
        global pages, early
        pages += 1
        if time.monotonic() - began < seconds / 2:
            early = pages
        out.write(b"%s %d\n" % (response.url.encode(), len(response.body)))
        out.write(response.body)
        if not isinstance(response, scrapy.http.HtmlResponse):
            return
        for link in set(response.xpath(LINKS).getall()):
            try:
                url = urldefrag(response.urljoin(link.strip())).url
                if url not in known and urlparse(url).netloc in hosts:
                    known.add(url)
                    yield scrapy.Request(url, self.parse, dont_filter=True)
            except ValueError:
                pass  # no URL


spider = "scrapy.spidermiddlewares."
downloader = "scrapy.downloadermiddlewares."
process = CrawlerProcess({
    "ROBOTSTXT_OBEY": True,
    "CONCURRENT_REQUESTS": int(sys.argv[2]),
    "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
    "DOWNLOAD_DELAY": 0,
    "RANDOMIZE_DOWNLOAD_DELAY": False,
    "AUTOTHROTTLE_ENABLED": False,
    "CLOSESPIDER_TIMEOUT": seconds,
    "LOG_LEVEL": "ERROR",
    "COOKIES_ENABLED": False,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "SCRAPER_SLOT_MAX_ACTIVE_SIZE": 100_000_000,
    "DOWNLOAD_WARNSIZE": 0,
    "TELNETCONSOLE_ENABLED": False,
    "MEMUSAGE_ENABLED": False,
    "SPIDER_MIDDLEWARES": {
        spider + "depth.DepthMiddleware": None,
        spider + "referer.RefererMiddleware": None,
        spider + "urllength.UrlLengthMiddleware": None,
    },
    "DOWNLOADER_MIDDLEWARES": {
        downloader + "offsite.OffsiteMiddleware": None,
        downloader + "httpauth.HttpAuthMiddleware": None,
        downloader + "httpproxy.HttpProxyMiddleware": None,
        downloader + "stats.DownloaderStats": None,
    },
})
process.crawl(Spider)
process.start()
took = time.monotonic() - began
print(f"{(pages - early) / (took - seconds / 2):.0f} {pages} pages in {took:.1f} s")
