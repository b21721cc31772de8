#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| webbase_stream::extract::fuzz(data));
