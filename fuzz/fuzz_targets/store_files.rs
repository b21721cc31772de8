#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| webbase_storage::fuzzing::store_files(data));
