"""A Scrapy spider that follows the links of some sites and stores what it reads, for crawl.sh.

crawl-spider.py SEEDS CONCURRENCY OUT SECONDS: robots files obeyed, no pauses, one request a site at a time. Prints pages a second.
"""

import sys
import time
from urllib.parse import urlparse

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor

seeds = open(sys.argv[1]).read().split()
hosts = {urlparse(url).netloc for url in seeds}
links = LinkExtractor(allow_domains=hosts, deny_extensions=[], tags=("a", "area", "iframe", "frame"), attrs=("href", "src"))
out = open(sys.argv[3], "wb")
pages = 0


class Spider(scrapy.Spider):
    name = "webbase-benchmark"
    start_urls = seeds

    def parse(self, response):
        global pages
        pages += 1
        out.write(b"%s %d\n" % (response.url.encode(), len(response.body)))
        out.write(response.body)
        if isinstance(response, scrapy.http.HtmlResponse):
            for link in links.extract_links(response):
                yield response.follow(link, self.parse)


process = CrawlerProcess({
    "ROBOTSTXT_OBEY": True,
    "CONCURRENT_REQUESTS": int(sys.argv[2]),
    "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
    "DOWNLOAD_DELAY": 0,
    "CLOSESPIDER_TIMEOUT": int(sys.argv[4]),
    "LOG_LEVEL": "ERROR",
    "COOKIES_ENABLED": False,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "RETRY_ENABLED": True,
    "TELNETCONSOLE_ENABLED": False,
})
process.crawl(Spider)
began = time.monotonic()
process.start()
took = time.monotonic() - began
print(f"{pages / took:.0f} {pages} pages in {took:.1f} s")
