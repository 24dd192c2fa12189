//! Scans of real pages (vLLM) and of small written ones.

use super::*;
use crate::engine::{Sum, detect};
use proptest::prelude::*;

const IDLE: &[u8] = include_bytes!("../../tests/fixtures/vllm-0.32/metrics_idle.txt");
const LOADED: &[u8] = include_bytes!("../../tests/fixtures/vllm-0.32/metrics_after_load.txt");

fn vllm(page: &str) -> Sample {
    scan(page.as_bytes(), Engine::Vllm)
}

#[test]
fn a_real_vllm_page_after_load() {
    let s = scan(LOADED, Engine::Vllm);
    let sum = |sum: f64| Sum { sum: Some(sum), count: Some(52.0) };
    let want = Sample {
        waiting: Some(0.0),
        running: Some(0.0),
        kv_usage: Some(0.0),
        block_size: Some(32),
        kv_tokens: Some(32_768),
        prefill_time: sum(24.466325576999225),
        prefill_tokens: sum(22_580.0),
        queue_time: sum(0.0015028700011043838),
        decode_time: sum(2.4849741800001084),
        inter_token: Sum { sum: Some(2.4849741800001084), count: Some(112.0) },
        generation_tokens: Some(164.0),
        prompt_tokens: Some(63_540.0),
        cache_queries: Some(63_540.0),
        cache_hits: Some(40_960.0),
        started: Some(1.79609900233e9),
        sleeping: Some(false),
        lora: None,
        skipped: 0,
    };
    assert_eq!(s, want);
}

#[test]
fn a_real_vllm_page_of_an_idle_server() {
    let s = scan(IDLE, Engine::Vllm);
    assert_eq!((s.waiting, s.running, s.kv_usage), (Some(0.0), Some(0.0), Some(0.0)));
    assert_eq!((s.block_size, s.kv_tokens), (Some(32), Some(32 * 65_536)));
    assert_eq!(s.prefill_time, Sum { sum: Some(0.023313361999953486), count: Some(2.0) });
    assert_eq!(s.skipped, 0);
    assert!(s.started.is_some());
}

#[test]
fn a_missing_series_is_unknown_and_never_zero() {
    let s = vllm("vllm:num_requests_running{engine=\"0\"} 3\n");
    assert_eq!(s, Sample { running: Some(3.0), ..Sample::default() });
    assert!(!s.is_empty());
    for page in ["", "\n", "<html>502 Bad Gateway</html>\n", "sglang:num_queue_reqs 4\n"] {
        assert_eq!(vllm(page), Sample::default(), "{page}");
        assert!(vllm(page).is_empty());
    }
}

#[test]
fn ranks_are_summed_and_shares_averaged() {
    let s = vllm(
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2\n\
         vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 5\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.6\n\
         vllm:cache_config_info{num_gpu_blocks=\"100\",engine=\"0\",block_size=\"16\"} 1\n\
         vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"200\"} 1\n",
    );
    assert_eq!(s.waiting, Some(7.0));
    assert!((s.kv_usage.unwrap() - 0.4).abs() < 1e-12);
    assert_eq!(s.kv_tokens, Some(4800));
    assert_eq!(s.block_size, Some(16));
}

#[test]
fn capacity_is_unknown_where_the_engine_says_none() {
    let none = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n";
    assert_eq!((vllm(none).kv_tokens, vllm(none).block_size), (None, Some(16)));
    let one_of_two = format!("vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"8\"}} 1\n{none}");
    assert_eq!(vllm(&one_of_two).kv_tokens, None);
    let told =
        "vllm:cache_config_info{block_size=\"16\",kv_cache_size_tokens=\"640\",num_gpu_blocks=\"100\"} 1\n";
    assert_eq!(vllm(told).kv_tokens, Some(640), "hybrid models hold fewer tokens than blocks × size");
    let huge = "vllm:cache_config_info{block_size=\"99999999999\",num_gpu_blocks=\"99999999999\"} 1\n";
    assert_eq!(vllm(huge).kv_tokens, None);
}

#[test]
fn garbage_is_skipped_and_counted() {
    let s = vllm(
        "vllm:num_requests_waiting NaN\nvllm:num_requests_running{engine=\"0} 3\nvllm:kv_cache_usage_perc +Inf\n\
         vllm:generation_tokens_total\nvllm:prompt_tokens_total{a=\"b\"} 12\n\u{0}\u{1}\nvllm:nothing NaN\n",
    );
    assert_eq!(s, Sample { prompt_tokens: Some(12.0), skipped: 4, ..Sample::default() });
}

#[test]
fn a_cut_page_gives_what_came_before_the_cut() {
    let s = vllm("vllm:num_requests_waiting 12\nvllm:num_requests_running 345");
    assert_eq!((s.waiting, s.running), (Some(12.0), None));
    let whole = scan(LOADED, Engine::Vllm);
    for cut in 0..LOADED.len().min(20_000) {
        let s = scan(&LOADED[..cut], Engine::Vllm);
        assert!(s.cache_queries.is_none() || s.cache_queries == whole.cache_queries, "cut at {cut}");
        assert_eq!(s.skipped, 0, "cut at {cut}");
    }
}

#[test]
fn one_sleeping_rank_is_a_sleeping_replica() {
    let rank = |engine: u8, awake: u8, off: u8| {
        format!(
            "vllm:engine_sleep_state{{engine=\"{engine}\",sleep_state=\"awake\"}} {awake}\n\
             vllm:engine_sleep_state{{engine=\"{engine}\",sleep_state=\"weights_offloaded\"}} {off}\n"
        )
    };
    assert_eq!(vllm(&rank(0, 1, 0)).sleeping, Some(false));
    assert_eq!(vllm(&(rank(0, 0, 1) + &rank(1, 1, 0))).sleeping, Some(true));
    assert_eq!(vllm("x 1\n").sleeping, None);
}

#[test]
fn of_the_lora_series_the_latest_counts() {
    let s = vllm(
        "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"new, b\",waiting_lora_adapters=\"\"} 200.5\n\
         vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"old\",waiting_lora_adapters=\"c\"} 100.5\n",
    );
    let want = Lora { max: Some(4), running: vec!["new".into(), "b".into()], waiting: vec![] };
    assert_eq!(s.lora, Some(want));
}

#[test]
fn the_old_name_of_kv_usage_counts_too_but_not_twice() {
    let s = vllm("vllm:gpu_cache_usage_perc 0.5\n");
    assert_eq!(s.kv_usage, Some(0.5));
    let s = vllm("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.5\n");
    assert_eq!(s.kv_usage, Some(0.5));
}

#[test]
fn pages_of_other_engines() {
    let sglang = "sglang:num_queue_reqs{model_name=\"m\"} 2\nsglang:num_running_reqs{model_name=\"m\"} 3\n\
                  sglang:token_usage{model_name=\"m\"} 0.25\nsglang:cache_config_info{page_size=\"64\",num_pages=\"10\"} 1\n";
    let trtllm = "trtllm_num_requests_waiting 2\ntrtllm_num_requests_running 3\ntrtllm_kv_cache_utilization 0.25\n\
                  trtllm_kv_cache_tokens_per_block 64\ntrtllm_kv_cache_max_blocks 10\n";
    let llamacpp =
        "llamacpp:requests_deferred 2\nllamacpp:requests_processing 3\nllamacpp:kv_cache_usage_ratio 0.25\n";
    for (page, engine, tokens) in [
        (sglang, Engine::Sglang, Some(640)),
        (trtllm, Engine::Trtllm, Some(640)),
        (llamacpp, Engine::Llamacpp, None),
    ] {
        assert_eq!(detect(page.as_bytes()), Some(engine));
        let s = scan(page.as_bytes(), engine);
        assert_eq!((s.waiting, s.running, s.kv_usage), (Some(2.0), Some(3.0), Some(0.25)), "{engine:?}");
        assert_eq!(s.kv_tokens, tokens, "{engine:?}");
        assert_eq!(s.skipped, 0);
    }
    assert_eq!(detect(LOADED), Some(Engine::Vllm));
    assert_eq!(detect(b"# HELP vllm:x y\nprocess_cpu_seconds_total 1\n"), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_page_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for engine in Engine::ALL {
            scan(&bytes, engine);
        }
    }

    /// Real lines with bytes changed: nearer to the parser's edges than noise.
    #[test]
    fn no_damaged_page_makes_it_panic(
        at in 0usize..LOADED.len(),
        damage in proptest::collection::vec((0usize..400, prop_oneof![
            Just(b'"'), Just(b'\\'), Just(b'{'), Just(b'}'), Just(b'='), Just(b','), Just(b' '), Just(b'\n'), any::<u8>()
        ]), 1..30),
    ) {
        let mut page = LOADED[at..(at + 4000).min(LOADED.len())].to_vec();
        for (offset, byte) in damage {
            let len = page.len();
            page[offset * 10 % len] = byte;
        }
        page.push(b'\n');
        let s = scan(&page, Engine::Vllm);
        prop_assert!(s.waiting.is_none_or(f64::is_finite));
    }
}
