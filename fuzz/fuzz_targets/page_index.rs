#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| webbase_mgmt_server::fuzzing::page_index(data));
