//! The steps of the protocol. Each is atomic; between any two of them anything else may happen.

use super::facts;
use super::sink::{External, Transaction};
use super::state::*;
use super::{Action, Config, Put};
use semel_checkpoint::decide::{PutAnswer, after_put, after_read_back, after_read_next, claim_holds, start_is_there};
use semel_checkpoint::{Entry, PutOutcome, decide_claim, retained_after};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Config {
    pub fn initial(&self) -> State {
        let visible = vec![vec![0; usize::from(self.records)]; 2];
        let allowed = vec![vec![1; usize::from(self.records)]; 2];
        State {
            journal: BTreeMap::new().into(),
            files: BTreeMap::new().into(),
            network: vec![],
            external: External { kind: self.kind, slots: Default::default(), visible }.into(),
            incarnations: vec![Incarnation::default().into(); usize::from(self.incarnations)],
            allowed: allowed.into(),
            misled: false,
            jobs: 0,
            budget: self.budget,
        }
    }

    pub fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.budget.wipes > 0 && state.job().is_some() {
            actions.push(Action::Wipe);
        }
        for late in 0..state.network.len() {
            actions.push(Action::Deliver(late));
        }
        for (n, incarnation) in state.incarnations.iter().enumerate() {
            self.enabled_of(state, n, incarnation, actions);
        }
    }

    fn enabled_of(&self, state: &State, n: usize, me: &Incarnation, actions: &mut Vec<Action>) {
        match me.phase {
            Phase::Stopped => return self.enabled_late(me, n, actions),
            Phase::Off => {
                // They are alike: start in order.
                if (n == 0 || state.incarnations[n - 1].phase != Phase::Off) && me.starts < 2 {
                    actions.push(Action::Start(n, None));
                    let newest = state.checkpoints().next_back().filter(|_| state.budget.from > 0);
                    for id in newest.map(|newest| newest.retained.clone()).unwrap_or_default() {
                        actions.push(Action::Start(n, Some(id)));
                    }
                }
                return;
            }
            _ => {}
        }
        if let Some(append) = &me.append {
            match append.step {
                Step::Put => {
                    actions.push(Action::Put(n, Put::Answered));
                    if state.budget.faults > 0 {
                        actions.push(Action::Put(n, Put::AnswerLost));
                        actions.push(Action::Put(n, Put::Delayed));
                    }
                }
                _ => actions.push(Action::Step(n)),
            }
        }
        self.enabled_late(me, n, actions);
        if me.phase == Phase::Recovering && (me.permits.is_empty() || !self.rules.commit_before_sweep) {
            actions.push(Action::Sweep(n));
        }
        if me.phase != Phase::Running {
            return;
        }
        actions.push(Action::Sweep(n));
        if me.in_flight.len() < 2 && me.position < self.records {
            actions.push(Action::Barrier(n));
            if state.budget.declines > 0 {
                actions.push(Action::Decline(n));
            }
        }
        if me.append.is_none() && !me.in_flight.is_empty() {
            actions.push(Action::Complete(n));
        }
        if me.append.is_none() && state.budget.tells > 0 {
            actions.push(Action::Tell(n));
        }
        // Once its entry was sent, a checkpoint can no longer be declined.
        if state.budget.declines > 0 && me.in_flight.len() > usize::from(me.has_sent()) {
            actions.push(Action::FailUpload(n));
        }
        if me.collecting.is_none() && state.budget.collections > 0 {
            actions.push(Action::List(n));
        }
    }

    /// What a fenced incarnation that does not know it, or whose request is still under way, can do as well.
    fn enabled_late(&self, me: &Incarnation, n: usize, actions: &mut Vec<Action>) {
        if !me.permits.is_empty() && me.phase != Phase::Claiming {
            actions.push(Action::Commit(n));
        }
        match &me.collecting {
            Some(Collecting::Listed(_)) if me.phase == Phase::Running => actions.push(Action::Plan(n)),
            Some(Collecting::Planned(..) | Collecting::Files(_)) => actions.push(Action::Remove(n)),
            _ => {}
        }
    }

    pub fn step(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wipe => self.wipe(&mut state),
            Action::Deliver(late) => {
                let (number, record) = state.network.remove(late);
                self.put(&mut state, number, &record);
            }
            Action::Start(n, from) => self.start(&mut state, n, from)?,
            Action::Put(n, how) => self.send(&mut state, n, how),
            Action::Step(n) => self.resolve(&mut state, n),
            Action::Commit(n) => self.commit(&mut state, n),
            Action::Sweep(n) => self.sweep(&mut state, n)?,
            Action::Barrier(n) => self.barrier(&mut state, n, true),
            Action::Decline(n) => {
                state.budget.declines -= 1;
                self.barrier(&mut state, n, false);
            }
            Action::FailUpload(n) => self.fail_upload(&mut state, n),
            Action::Complete(n) => self.complete(&mut state, n),
            Action::Tell(n) => self.tell(&mut state, n)?,
            Action::List(n) => {
                state.budget.collections -= 1;
                let files: BTreeSet<File> = state.files.keys().copied().collect();
                state.incarnations[n].collecting = Some(Collecting::Listed(files));
            }
            Action::Plan(n) => self.plan(&mut state, n),
            Action::Remove(n) => self.remove(&mut state, n),
        }
        Some(state)
    }

    fn wipe(&self, state: &mut State) {
        state.budget.wipes -= 1;
        state.journal.clear();
        state.files.clear();
        // Journal names hold no job: emptying the folder while an old incarnation removes entries is not covered.
        for incarnation in &mut state.incarnations {
            if let Some(Collecting::Planned(_, files)) = incarnation.collecting.take() {
                incarnation.collecting = Some(Collecting::Files(files));
            }
        }
    }

    /// Put-if-absent; what the store answers.
    fn put(&self, state: &mut State, number: u8, record: &Record) -> PutOutcome {
        if self.rules.put_if_absent && state.journal.contains_key(&number) {
            return PutOutcome::Exists;
        }
        state.journal.insert(number, record.clone());
        PutOutcome::Written
    }

    fn start(&self, state: &mut State, n: usize, from: Option<u8>) -> Option<()> {
        if from.is_some() {
            state.budget.from -= 1;
        }
        let starts = state.incarnations[n].starts + 1;
        let writer = u8::try_from(n).unwrap();
        if state.job().is_none() {
            state.jobs += 1;
            if state.jobs > 2 || !state.journal.is_empty() {
                return None;
            }
            let record = Record { job: state.jobs, writer, start: starts, content: Content::Job };
            state.journal.insert(0, record);
        }
        let job = state.job()?;
        let Some(entries) = facts::entries(state) else {
            // An entry of another job: the start is refused with an error.
            state.incarnations[n] = Incarnation { phase: Phase::Stopped, starts, ..Incarnation::default() }.into();
            return Some(());
        };
        let decision = decide_claim(&entries, from.map(facts::id)).ok()?;
        let restored = decision.restored.as_ref().map(|entry| facts::small(entry.id));
        if from.is_some() && from == entries.iter().rev().find_map(|(_, e)| e.checkpoint()).map(|e| facts::small(e.id)) {
            return None;
        }
        let source = restored.and_then(|id| state.checkpoints().find(|checkpoint| checkpoint.id == id)).cloned();
        let newest = state.checkpoints().next_back().map(|checkpoint| checkpoint.id);
        let mut permits: Vec<Permit> = Vec::new();
        for (id, committable) in &decision.pending {
            let id = facts::small(*id);
            if !self.rules.recommit_all && Some(id) != newest {
                continue;
            }
            let entry = state.checkpoints().find(|checkpoint| checkpoint.id == id)?;
            let same = |t: &&Transaction| facts::id(t.checkpoint) == committable.checkpoint;
            let transaction = entry.transactions.iter().find(same)?.clone();
            match permits.last_mut() {
                Some(permit) if permit.id == id => permit.transactions.push(transaction),
                _ => permits.push(Permit { id, position: entry.position, transactions: vec![transaction] }),
            }
        }
        let generation = u8::try_from(decision.generation.0).unwrap();
        let number = u8::try_from(decision.number).unwrap();
        let content = Content::Generation { generation, restored };
        let append = Append { number, record: Record { job, writer, start: starts, content }, step: Step::Put, repeated: false };
        let position = source.as_ref().map_or(0, |checkpoint| checkpoint.position);
        state.incarnations[n] = Incarnation {
            phase: Phase::Claiming,
            starts,
            job,
            generation,
            number: number + 1,
            position,
            next: facts::small(decision.next_checkpoint),
            recovered: (facts::small(decision.committed), position),
            retained: decision.retained.iter().map(|id| facts::small(*id)).collect(),
            chain: source.map(|checkpoint| checkpoint.files).unwrap_or_default(),
            permits,
            start: (number, Some(append.record.clone())),
            append: Some(append),
            ..Incarnation::default()
        }
        .into();
        // Rows of entries that are given up may be committed already, or by a zombie; `--from` accepts that.
        if from.is_some() {
            let given_up = decision.abandoned.iter().map(|entry| facts::small(entry.id)).collect::<Vec<_>>();
            let rows = state.checkpoints().filter(|checkpoint| given_up.contains(&checkpoint.id));
            let rows: Vec<u8> = rows.flat_map(|c| &c.transactions).flat_map(|t| t.records.clone()).collect();
            for record in rows {
                state.allowed[usize::from(job) - 1][usize::from(record) - 1] += 1;
            }
        }
        Some(())
    }

    fn send(&self, state: &mut State, n: usize, how: Put) {
        let Some(append) = state.incarnations[n].append.clone() else {
            return;
        };
        let answer = match how {
            Put::Answered => PutAnswer::Known(self.put(state, append.number, &append.record)),
            Put::AnswerLost => {
                self.put(state, append.number, &append.record);
                PutAnswer::Unknown
            }
            Put::Delayed => {
                state.network.push((append.number, append.record.clone()));
                PutAnswer::Unknown
            }
        };
        if how != Put::Answered {
            state.budget.faults -= 1;
        }
        let repeated = append.repeated && self.rules.read_next_after_repeat;
        let step = Step::from(after_put(answer, repeated));
        self.go_to(state, n, step, true);
    }

    fn resolve(&self, state: &mut State, n: usize) {
        let Some(append) = state.incarnations[n].append.clone() else {
            return;
        };
        let step = match append.step {
            Step::ReadBack => {
                let found = state.journal.get(&append.number);
                let found = found.map(|record| (facts::job_uuid(record.job), facts::nonce(record)));
                Step::from(after_read_back(found, facts::job_uuid(append.record.job), facts::nonce(&append.record)))
            }
            Step::ReadNext if !self.rules.read_next_after_repeat => Step::Durable,
            Step::ReadNext => Step::from(after_read_next(state.journal.contains_key(&(append.number + 1)))),
            Step::ReadStart => {
                let there = self.start_is_there(state, n);
                return if there { self.durable(state, n) } else { self.stop(state, n) };
            }
            Step::List => {
                if self.rules.read_start_after_put && state.job() != Some(append.record.job) {
                    return self.stop(state, n);
                }
                let numbers = state.journal.keys().map(|number| u64::from(*number));
                if claim_holds(append.number.into(), numbers) || !self.rules.list_after_claim {
                    state.incarnations[n].append = None;
                    state.incarnations[n].phase = Phase::Recovering;
                } else {
                    let mut after = state.journal.range(append.number + 1..);
                    let won = after.any(|(_, record)| matches!(record.content, Content::Generation { .. }));
                    if won { self.stop(state, n) } else { self.start_again(state, n) }
                }
                return;
            }
            other => other,
        };
        self.go_to(state, n, step, append.repeated);
    }

    fn start_is_there(&self, state: &State, n: usize) -> bool {
        let (number, Some(start)) = &state.incarnations[n].start else { return false };
        let found = state.journal.get(number).map(|record| (facts::job_uuid(record.job), facts::nonce(record)));
        let first = state.job().map(facts::job_uuid);
        !self.rules.read_start_after_put || start_is_there(found, first, facts::job_uuid(start.job), facts::nonce(start))
    }

    /// The appender is told that its entry is durable.
    fn durable(&self, state: &mut State, n: usize) {
        let me = &mut *state.incarnations[n];
        let Some(append) = me.append.take() else { return };
        me.number += 1;
        let Content::Checkpoint(checkpoint) = append.record.content else {
            return;
        };
        me.in_flight.remove(0);
        me.retained = checkpoint.retained;
        let Checkpoint { id, position, transactions, committed, .. } = checkpoint;
        me.permits.push(Permit { id, position, transactions });
        if self.rules.reuse_after_durable_entry {
            me.ids.retain(|(_, checkpoint)| *checkpoint > committed);
        }
    }

    fn go_to(&self, state: &mut State, n: usize, step: Step, repeated: bool) {
        let there = self.start_is_there(state, n);
        let me = &mut *state.incarnations[n];
        let (job, own) = (me.job, me.generation);
        let Some(append) = &mut me.append else { return };
        append.step = step;
        append.repeated = repeated;
        match (step, append.record.content.clone()) {
            (Step::Durable, Content::Checkpoint(_) | Content::Committed { .. }) => {
                // A claim before this number stands in a hole that collection made: it has claimed nothing.
                let mut entries = state.journal.range(append.number..).map(|(_, record)| record).filter(|record| record.job == job);
                let later = |record: &Record| matches!(record.content, Content::Generation { generation, .. } if generation > own);
                state.misled |= there && entries.any(later);
                if self.budget.wipes > 0 {
                    append.step = Step::ReadStart;
                } else if there {
                    self.durable(state, n);
                } else {
                    self.stop(state, n);
                }
            }
            (Step::Durable, _) => append.step = Step::List,
            (Step::Fenced, Content::Generation { .. }) => {
                let theirs = [append.number, append.number + 1].map(|number| state.journal.get(&number));
                let own = append.record.clone();
                let won = theirs.into_iter().flatten().any(|r| matches!(r.content, Content::Generation { .. }) && *r != own);
                if won {
                    self.stop(state, n);
                } else {
                    self.start_again(state, n);
                }
            }
            (Step::Fenced | Step::Foreign, _) => self.stop(state, n),
            _ => {}
        }
    }

    /// A stopped one keeps what is under way: commits and removals may still happen.
    fn stop(&self, state: &mut State, n: usize) {
        let me = &mut *state.incarnations[n];
        let claimed = me.phase == Phase::Running;
        *me = Incarnation {
            phase: Phase::Stopped,
            starts: me.starts,
            job: me.job,
            generation: me.generation,
            permits: if claimed { std::mem::take(&mut me.permits) } else { vec![] },
            collecting: me.collecting.take().filter(|collecting| !matches!(collecting, Collecting::Listed(_))),
            ..Incarnation::default()
        };
    }

    fn start_again(&self, state: &mut State, n: usize) {
        let starts = state.incarnations[n].starts;
        state.incarnations[n] = Incarnation { starts, ..Incarnation::default() }.into();
    }

    fn commit(&self, state: &mut State, n: usize) {
        let permit = state.incarnations[n].permits.remove(0);
        for transaction in &permit.transactions {
            state.external.commit(&self.rules, transaction);
        }
        let me = &mut *state.incarnations[n];
        if me.phase == Phase::Stopped {
            return;
        }
        me.committed = permit.id;
        me.committed_position = permit.position;
        if !self.rules.reuse_after_durable_entry {
            me.ids.retain(|(_, checkpoint)| *checkpoint > permit.id);
        }
    }

    fn sweep(&self, state: &mut State, n: usize) -> Option<()> {
        let (job, generation) = (state.incarnations[n].job, state.incarnations[n].generation);
        let rules = self.rules;
        let ended = state.external.abort(|transaction| {
            let own_job = transaction.job == job || !rules.job_in_names;
            let lower = transaction.generation < generation;
            own_job && (lower || !rules.sweep_only_lower && transaction.generation != generation)
        });
        let me = &mut *state.incarnations[n];
        if me.phase == Phase::Recovering {
            me.phase = Phase::Running;
            (me.committed, me.committed_position) = me.recovered;
            return Some(());
        }
        ended.then_some(())
    }

    /// One record per checkpoint: it is read, written into a transaction and pre-committed; the state is uploaded, or
    /// that fails and the checkpoint is declined.
    fn barrier(&self, state: &mut State, n: usize, uploaded: bool) {
        let me = &mut *state.incarnations[n];
        let checkpoint = me.next;
        me.next += 1;
        me.position += 1;
        let k = (0..).find(|k| me.ids.iter().all(|(used, _)| used != k)).unwrap_or_default();
        me.ids.push((k, checkpoint));
        let (job, generation) = (me.job, me.generation);
        let transaction = Transaction { job, generation, checkpoint, k, records: vec![me.position] };
        state.external.begin(&self.rules, &transaction);
        let me = &mut *state.incarnations[n];
        me.declined.push(transaction);
        if !uploaded {
            return self.declined(state, n);
        }
        let file = File { job, checkpoint, generation };
        state.files.insert(State::file_name(&self.rules, file), u8::try_from(n).unwrap());
        // Changes on top of a base; a new base when the chain is long.
        if me.chain.len() > 1 {
            me.chain.clear();
        }
        me.chain.push(file);
        let transactions = std::mem::take(&mut me.declined);
        me.in_flight.push(InFlight { id: checkpoint, position: me.position, files: me.chain.clone(), transactions });
    }

    /// An upload is given up while it, and perhaps the next checkpoint's, is under way: its changes go into the next file. The
    /// answer may be lost and the file there all the same.
    fn fail_upload(&self, state: &mut State, n: usize) {
        state.budget.declines -= 1;
        let me = &mut *state.incarnations[n];
        let InFlight { id, transactions, .. } = me.in_flight.remove(usize::from(me.has_sent()));
        let generation = me.generation;
        let of_it = |file: &File| file.checkpoint == id && file.generation == generation;
        me.chain.retain(|file| !of_it(file));
        if !self.rules.declined_rows_travel {
            return;
        }
        match me.in_flight.last_mut().filter(|next| next.id > id) {
            Some(next) => {
                next.files.retain(|file| !of_it(file));
                next.transactions.splice(0..0, transactions);
            }
            None => drop(me.declined.splice(0..0, transactions)),
        }
    }

    fn declined(&self, state: &mut State, n: usize) {
        if !self.rules.declined_rows_travel {
            state.incarnations[n].declined.clear();
        }
    }

    fn complete(&self, state: &mut State, n: usize) {
        let me = &mut *state.incarnations[n];
        let InFlight { id, position, files, transactions } = me.in_flight[0].clone();
        let previous: Vec<_> = me.retained.iter().copied().map(facts::id).collect();
        let retained = retained_after(&previous, facts::id(id), self.num_retained.into());
        let content = Content::Checkpoint(Checkpoint {
            id,
            generation: me.generation,
            committed: me.committed,
            committed_position: me.committed_position,
            position,
            retained: retained.iter().map(|id| facts::small(*id)).collect(),
            files,
            transactions,
        });
        let record = Record { job: me.job, writer: u8::try_from(n).unwrap(), start: me.starts, content };
        me.append = Some(Append { number: me.number, record, step: Step::Put, repeated: false });
    }

    /// What is committed, without a checkpoint: at the end of a job, and after a recovery. Here at any time.
    fn tell(&self, state: &mut State, n: usize) -> Option<()> {
        state.budget.tells -= 1;
        let me = &mut *state.incarnations[n];
        let unfinished = me.permits.last().filter(|_| !self.rules.only_committed_is_told);
        let (committed, position) = unfinished.map_or((me.committed, me.committed_position), |permit| (permit.id, permit.position));
        if committed == 0 {
            return None;
        }
        let content = Content::Committed { committed, generation: me.generation, position };
        let record = Record { job: me.job, writer: u8::try_from(n).unwrap(), start: me.starts, content };
        me.append = Some(Append { number: me.number, record, step: Step::Put, repeated: false });
        Some(())
    }

    fn plan(&self, state: &mut State, n: usize) {
        let me = &state.incarnations[n];
        let Some(Collecting::Listed(listed)) = &me.collecting else {
            return;
        };
        let listed: Vec<File> = listed.iter().copied().collect();
        let (entries, files) = facts::plan(&self.rules, state, me.job, me.generation, &listed);
        let empty = entries.is_empty() && files.is_empty();
        state.incarnations[n].collecting = (!empty).then_some(Collecting::Planned(entries, files));
    }

    fn remove(&self, state: &mut State, n: usize) {
        match state.incarnations[n].collecting.take() {
            Some(Collecting::Planned(entries, files)) => {
                entries.iter().for_each(|number| drop(state.journal.remove(number)));
                state.incarnations[n].collecting = (!files.is_empty()).then_some(Collecting::Files(files));
            }
            Some(Collecting::Files(files)) => {
                for file in files {
                    state.files.remove(&State::file_name(&self.rules, file));
                }
            }
            other => state.incarnations[n].collecting = other,
        }
    }

    /// The real claim decision never fails on a journal that the protocol wrote.
    pub fn can_restart(state: &State) -> bool {
        thread_local!(static KNOWN: RefCell<HashMap<u64, bool>> = RefCell::default());
        let of = state.journal.hash_once();
        if let Some(known) = KNOWN.with_borrow(|known| known.get(&of).copied()) {
            return known;
        }
        let can = Config::can_restart_from(state);
        KNOWN.with_borrow_mut(|known| known.insert(of, can));
        can
    }

    fn can_restart_from(state: &State) -> bool {
        let Some(entries) = facts::entries(state) else {
            return true;
        };
        let checkpoints = entries.iter().any(|(_, entry): &(u64, Entry)| entry.checkpoint().is_some());
        decide_claim(&entries, None).is_ok_and(|decision| decision.restored.is_some() == checkpoints)
    }
}
