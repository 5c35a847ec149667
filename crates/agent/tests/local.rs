//! A turn with a scripted model and Python in the local sandbox.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use aludel_agent::Ending;
use aludel_testkit::{Bench, Scripted, ScriptedTransport};
use common::{agent, follow, observations};

#[tokio::test]
async fn a_program_in_the_local_sandbox_fails_is_fixed_and_draws_what_the_model_sees() {
    let bench = Bench::local().await;
    let upstream = ScriptedTransport::new(vec![
        Scripted::Python("x = 'ünï😀'\nprint(1/0)"),
        Scripted::Python("print(len(x))"),
        Scripted::Python("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"),
        Scripted::Text("A line."),
    ]);
    let (_, turn) = follow(&agent(&upstream, &bench).build(), "Plot").await;
    assert_eq!((&turn.ending, turn.answer.as_str()), (&Ending::Answered, "A line."));
    let observations = observations(&turn);
    assert!(observations[0].contains("ZeroDivisionError") && observations[0].contains("Cell 1, line 2"));
    assert!(observations[1].contains("[stdout]\n4\n"), "{observations:?}");
    let messages = upstream.requests()[3]["messages"].as_array().unwrap().clone();
    let url = messages.last().unwrap()["content"][1]["image_url"]["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("data:image/png;base64,iVBOR"), "{}", &url[..60]);
    bench.stop().await;
}
