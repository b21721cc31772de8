#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| webbase_crawler::fuzzing::crawl_files(data));
