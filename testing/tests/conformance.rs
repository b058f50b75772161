//! The conformance vectors on the engine in this process.

use kayvee_testing::{
    conformance::{self, Target, Traits},
    in_process::Server,
};

#[test]
fn the_engine_replies_as_redis_does() {
    let server = Server::start(&["--enable-debug-command", "yes"]).unwrap();
    let target = Target { addr: server.addr(), password: None };
    let cases = conformance::load(&conformance::vectors_dir()).unwrap();
    let traits = Traits::of(&target).unwrap();
    let totals = conformance::run_all(&cases, &target, &traits);
    println!("{totals:?}");
    assert_eq!(totals.failed, 0);
}
