//! Starts that were cut short.

use super::*;

/// A first start up to its n-th step.
fn begin(config: &StoreConfig, steps: usize) {
    let log = config.path.join("log");
    if steps > 0 {
        make_private(&log).unwrap();
    }
    if steps > 1 {
        drop(Base::open(&base_path(&config.path, 1), config.cache_bytes).unwrap());
    }
    if steps > 2 {
        let (base, meta) = open_base(config, &log).ok().unwrap();
        drop(base);
        if steps > 3 {
            Journal::new(&log, meta.store, config.segment_bytes).rotate().unwrap();
        }
    }
}

#[test]
fn a_first_start_that_was_cut_short_is_no_damage_but_a_log_that_is_lost_after_it_is() {
    for steps in 0..=4 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sessions");
        let config = StoreConfig { segment_bytes: 64 << 10, cache_bytes: 1 << 20, ..StoreConfig::at(&path) };
        begin(&config, steps);
        if let Err(error) = open(config.clone()) {
            panic!("after {steps} steps: {error}");
        }
        for entry in fs::read_dir(path.join("log")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        assert!(matches!(open(config), Err(OpenError::Corrupt { .. })), "after {steps} steps");
    }
}
