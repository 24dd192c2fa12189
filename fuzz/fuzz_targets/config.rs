//! See `homing_fuzz::config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homing_fuzz::config(data));
