#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| webbase_node::fuzzing::importance(data));
