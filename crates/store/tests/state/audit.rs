//! Programs that wait for a decision, and the audit log.

use aludel_store::{
    ApprovalStatus, ApprovalUpdate, AuditChain, AuditEntry, AuditEvent, DecisionOutcome, NewApproval, PageQuery, Store,
    TamperEvidence, Tenant, program_digest,
};

/// An entry about a program of a response, decided about by rules.
fn entry(event: AuditEvent, code: &str) -> AuditEntry {
    AuditEntry {
        event,
        request: "resp_1".into(),
        session: "cntr_1".into(),
        code: code.into(),
        actor: "rules".into(),
        outcome: String::new(),
    }
}

#[tokio::test]
async fn a_program_is_decided_once_by_its_tenant_and_by_what_was_seen() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let key = store.create_key("other", None).await.unwrap();
    let (ada, eve) = (Tenant::local(), store.tenant_of_key(&key.secret).await.unwrap().unwrap());
    let new = NewApproval {
        request: "resp_1".into(),
        call_id: "call_1".into(),
        session: "cntr_1".into(),
        model: "m".into(),
        code: "print(1)".into(),
        reasons: vec!["line 1".into()],
        patience: 60,
    };
    let asked = store.add_approval(&ada, new.clone()).await.unwrap();
    let decision =
        |status, sha256: &str| ApprovalUpdate { sha256: sha256.into(), status, by: "ada".into(), reason: None };
    let yes = || decision(ApprovalStatus::Approved, &asked.sha256);
    let (pending, id) = (Some(ApprovalStatus::Pending), &asked.id);
    assert_eq!(store.decide(Some(&eve), id, yes()).await.unwrap(), DecisionOutcome::Unknown);
    assert_eq!(store.approval(Some(&eve), id).await.unwrap(), None);
    assert_eq!(store.approvals(Some(&eve), None, PageQuery::first(10)).await.unwrap().data, []);
    let other = decision(ApprovalStatus::Approved, &program_digest("print(2)"));
    assert_eq!(store.decide(Some(&ada), id, other).await.unwrap(), DecisionOutcome::OtherProgram);
    assert_eq!(store.approvals(None, pending, PageQuery::first(10)).await.unwrap().data, std::slice::from_ref(&asked));
    let DecisionOutcome::Now(approved) = store.decide(Some(&ada), id, yes()).await.unwrap() else { panic!() };
    assert_eq!((approved.status, approved.decided_by.as_deref()), (ApprovalStatus::Approved, Some("ada")));
    let late = decision(ApprovalStatus::Denied, &asked.sha256);
    assert_eq!(store.decide(None, id, late).await.unwrap(), DecisionOutcome::Before(approved.clone()));
    store.expire_approval(id).await.unwrap();
    assert_eq!(store.approval_of_call("resp_1", "call_1").await.unwrap(), Some(approved));
    assert_eq!(store.approvals(Some(&ada), pending, PageQuery::first(10)).await.unwrap().data, []);
    store.start_approved(id).await.unwrap();
    let second = store.add_approval(&ada, new.clone()).await.unwrap();
    store.expire_approvals_except(vec!["resp_1".into()]).await.unwrap();
    assert_eq!(store.approval(None, &second.id).await.unwrap().unwrap().status, ApprovalStatus::Pending);
    store.expire_approvals_except(vec!["resp_2".into()]).await.unwrap();
    assert_eq!(store.approval(None, &second.id).await.unwrap().unwrap().status, ApprovalStatus::Expired);
}

#[tokio::test]
async fn a_program_that_was_cut_off_has_an_end_in_the_audit_log() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).await.unwrap();
    let tenant = Tenant::local();
    let entry = |event, code: &str| AuditEntry {
        event,
        request: "resp_1".into(),
        session: "cntr_1".into(),
        code: code.into(),
        actor: "nobody".into(),
        outcome: String::new(),
    };
    let (started, ended) = (AuditEvent::Started, AuditEvent::Ended);
    store.end_what_was_cut_off("cut off").await.unwrap();
    let entries = [(started, "1"), (started, "2"), (ended, "1"), (started, "1"), (AuditEvent::Denied, "3")];
    store.audit(&tenant, entries.map(|(event, code)| entry(event, code)).to_vec()).await.unwrap();
    for _ in 0..2 {
        store.end_what_was_cut_off("cut off").await.unwrap();
        let log = store.audit_log(5, 10).await.unwrap();
        let added: Vec<_> =
            log.iter().map(|entry| (entry.event.as_str(), entry.code.as_deref(), &*entry.outcome)).collect();
        assert_eq!(added, [("ended", Some("2"), "cut off"), ("ended", Some("1"), "cut off")]);
    }
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(7));
}

#[tokio::test]
async fn a_program_that_ran_beside_many_others_has_an_end_in_the_audit_log() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).await.unwrap();
    let tenant = Tenant::local();
    store.audit(&tenant, vec![entry(AuditEvent::Started, "long")]).await.unwrap();
    let others = (0..5_100).flat_map(|_| [AuditEvent::Started, AuditEvent::Ended]);
    store.audit(&tenant, others.map(|event| entry(event, "short")).collect()).await.unwrap();
    store.end_what_was_cut_off("cut off").await.unwrap();
    let last = store.audit_log(10_201, 10).await.unwrap();
    assert_eq!(last.iter().map(|entry| entry.code.as_deref()).collect::<Vec<_>>(), [Some("long")]);
}

#[tokio::test]
async fn an_end_with_the_beginning_of_a_program_is_that_of_the_whole() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).await.unwrap();
    let tenant = Tenant::local();
    store.audit(&tenant, vec![entry(AuditEvent::Started, "long")]).await.unwrap();
    for (whole, shown) in [("long", "long"), ("archived", "lo")] {
        store.audit_shortened(&tenant, entry(AuditEvent::Ended, "lo"), program_digest(whole)).await.unwrap();
        let last = store.audit_log(0, 10).await.unwrap().pop().unwrap();
        assert_eq!((last.code.as_deref(), last.sha256), (Some(shown), program_digest(shown)));
    }
    store.end_what_was_cut_off("cut off").await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(3));
}

#[tokio::test]
async fn a_program_of_a_living_process_is_not_taken_for_cut_off() {
    let place = tempfile::tempdir().unwrap();
    let (other, tenant) = (Store::open_beside(place.path()).await.unwrap(), Tenant::terminal());
    let request = other.owned_turn_id("ask").await.unwrap().to_string();
    let entry = AuditEntry {
        event: AuditEvent::Started,
        request,
        session: "cntr_1".into(),
        code: "1".into(),
        actor: String::new(),
        outcome: String::new(),
    };
    other.audit(&tenant, vec![entry]).await.unwrap();
    let store = Store::open(place.path()).await.unwrap();
    store.end_what_was_cut_off("cut off").await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(1));
    drop(other);
    store.end_what_was_cut_off("cut off").await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(2));
}

#[tokio::test]
async fn a_program_of_a_living_process_waits_on_when_a_server_starts() {
    let place = tempfile::tempdir().unwrap();
    let (other, tenant) = (Store::open_beside(place.path()).await.unwrap(), Tenant::local());
    let request = other.owned_turn_id("exec").await.unwrap().to_string();
    let new = NewApproval {
        request,
        call_id: "call_1".into(),
        session: "cntr_1".into(),
        model: "m".into(),
        code: "1".into(),
        reasons: Vec::new(),
        patience: 60,
    };
    let asked = other.add_approval(&tenant, new).await.unwrap();
    let store = Store::open(place.path()).await.unwrap();
    let status = async || store.approval(None, &asked.id).await.unwrap().unwrap().status;
    store.expire_approvals_except(Vec::new()).await.unwrap();
    assert_eq!(status().await, ApprovalStatus::Pending);
    drop(other);
    store.expire_approvals_except(Vec::new()).await.unwrap();
    assert_eq!(status().await, ApprovalStatus::Expired);
}

#[tokio::test]
async fn the_audit_log_only_grows_and_shows_what_was_changed() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let tenant = Tenant::local();
    store.audit(&tenant, vec![entry(AuditEvent::Started, "1"), entry(AuditEvent::Ended, "1")]).await.unwrap();
    store.audit(&tenant, vec![entry(AuditEvent::Denied, "2")]).await.unwrap();
    let log = store.audit_log(0, 10).await.unwrap();
    assert_eq!(
        log.iter().map(|record| (record.number, &*record.event)).collect::<Vec<_>>(),
        [(1, "started"), (2, "ended"), (3, "refused")]
    );
    assert_eq!(log[2].sha256, program_digest("2"));
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(3));
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let replace = "INSERT OR REPLACE INTO audit SELECT number, at_ms, tenant, event, request, container, sha256, '3', actor, \
                   outcome, chain FROM audit WHERE number = 2";
    for query in ["DELETE FROM audit", "UPDATE audit SET code = '3' WHERE number = 2", replace] {
        assert!(database.execute(query, []).unwrap_err().to_string().contains("only be added to"), "{query}");
    }
    // Whoever can write the file can take the guard away, but is found out.
    for (query, number) in
        [("UPDATE audit SET outcome = 'x' WHERE number = 2", 2), ("DELETE FROM audit WHERE number = 1", 1)]
    {
        database
            .execute_batch("SAVEPOINT before; DROP TRIGGER audit_is_not_changed; DROP TRIGGER audit_is_not_shortened")
            .unwrap();
        database.execute(query, []).unwrap();
        database.execute_batch("RELEASE before").unwrap();
        assert_eq!(store.verify_audit_log().await.unwrap(), Err(TamperEvidence { number }));
        database
            .execute_batch(
                "CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT 1; END;
                                CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit BEGIN SELECT 1; END",
            )
            .unwrap();
    }
}

#[tokio::test]
async fn the_beginning_of_the_audit_log_can_be_archived_and_the_rest_follows_from_it() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let tenant = Tenant::local();
    for code in ["1", "", "2", "3"] {
        let entries = vec![entry(AuditEvent::Started, code), entry(AuditEvent::Ended, code)];
        store.audit(&tenant, entries).await.unwrap();
    }
    store.audit(&tenant, vec![entry(AuditEvent::Started, "2")]).await.unwrap();
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let programs = || {
        let mut query = database.prepare("SELECT code FROM programs ORDER BY code").unwrap();
        query.query_map([], |row| row.get::<_, String>(0)).unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    assert_eq!(programs(), ["", "1", "2", "3"], "each once");
    // As an earlier version wrote it: the program in the entry.
    let trigger = "SELECT sql FROM sqlite_master WHERE name = 'audit_is_not_changed'";
    let trigger: String = database.query_row(trigger, [], |row| row.get(0)).unwrap();
    database.execute_batch("DROP TRIGGER audit_is_not_changed; UPDATE audit SET code = '1' WHERE number = 1;").unwrap();
    database.execute_batch(&trigger).unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(9));

    let log = store.audit_log(0, 100).await.unwrap();
    assert_eq!(log.iter().filter_map(|entry| entry.code.as_deref()).collect::<String>(), "1122332");
    let used = store.bytes_of(&tenant).await.unwrap();
    let end = AuditChain { number: 6, chain: log[5].chain.clone() };
    let other = AuditChain { chain: log[4].chain.clone(), ..end.clone() };
    assert!(store.remove_archived(other).await.is_err(), "the digest of another entry");
    store.remove_archived(end.clone()).await.unwrap();
    assert_eq!(store.audit_log_start().await.unwrap(), end);
    assert_eq!(store.audit_log(0, 100).await.unwrap(), log[6..]);
    assert_eq!(programs(), ["2", "3"]);
    assert!(store.bytes_of(&tenant).await.unwrap() < used);
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(9));
    assert!(store.remove_archived(end).await.is_err(), "it is gone");
    for query in [
        "DELETE FROM audit WHERE number = 8",
        "DELETE FROM audit_archives",
        "UPDATE audit_archives SET number = 8",
        "INSERT INTO audit SELECT 5, at_ms, tenant, event, request, container, sha256, code, actor, outcome, chain FROM audit",
        "UPDATE programs SET code = 'x'",
        "INSERT OR REPLACE INTO programs SELECT number, tenant, sha256, 'x' FROM programs",
        "DELETE FROM programs WHERE code = '3'",
    ] {
        assert!(database.execute(query, []).unwrap_err().to_string().contains("only be added to"), "{query}");
    }
    store.remove_archived(AuditChain { number: 9, chain: log[8].chain.clone() }).await.unwrap();
    store.audit(&tenant, vec![entry(AuditEvent::Ended, "2")]).await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(10));
    assert_eq!(programs(), ["2"]);
    // The archive itself shows that it is whole, and that the log goes on from it.
    let mut chain = AuditChain::default();
    for record in &log {
        chain.follow(record).unwrap();
    }
    assert_eq!(chain, store.audit_log_start().await.unwrap());
    assert_eq!(AuditChain::default().follow(&log[1]), Err(TamperEvidence { number: 1 }));
}
