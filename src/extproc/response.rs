//! The way back: everything passes at once, and is read along.

use super::body::cut;
use super::effect::{Effect, Effects, Release};
use super::intent::Rules;
use super::message::{Head, In, Notes, Out, Set};
use super::names;
use super::restore::Restore;
use crate::core::Failure;
use crate::openai::Usage;
use crate::proxy::Watch;
use bytes::Bytes;

/// A replica's `Retry-After` counts up to this many seconds.
const MAX_PATIENCE: f64 = 30.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Start,
    Flowing,
    Over,
}

/// The answer as far as it has come.
#[derive(Debug)]
pub(super) struct Answer {
    stage: Stage,
    watch: Watch,
    restore: Option<Restore>,
    released: bool,
    spoke: bool,
    tokens: u32,
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) events: bool,
}

impl Default for Answer {
    fn default() -> Self {
        Answer {
            stage: Stage::Start,
            watch: Watch::Blind,
            restore: None,
            released: false,
            spoke: false,
            tokens: 0,
            status: 0,
            bytes: 0,
            events: false,
        }
    }
}

/// What the request was, for reading its answer.
pub(super) struct Asked<'a> {
    pub(super) generates: bool,
    /// Names of the model: the client's, and the one that the replica was asked for.
    pub(super) renamed: Option<&'a (String, String)>,
    /// Does an answer's id name something stored?
    pub(super) stores: bool,
}

impl Answer {
    /// Has it begun?
    pub(super) fn begun(&self) -> bool {
        self.stage != Stage::Start
    }

    /// Has it ended?
    pub(super) fn over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// What the replica counted.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.watch.usage()
    }

    /// Tokens seen.
    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Did it say that it failed, in the middle of a good status?
    pub(super) fn error(&self) -> bool {
        self.watch.error()
    }

    pub(super) fn take(
        &mut self,
        input: In,
        notes: &Notes,
        asked: &Asked<'_>,
        rules: &Rules,
        effects: &mut Effects,
    ) {
        match (self.stage, input) {
            (Stage::Start, In::ResponseHead(head, end)) => {
                self.head(&head, notes, asked, rules, effects);
                self.stage = Stage::Flowing;
                if end {
                    self.end(asked, effects);
                }
            }
            (Stage::Flowing, In::ResponseBody(data, end)) => self.body(data, end, asked, effects),
            (Stage::Flowing, In::ResponseTrailers) => {
                if let Some(piece) = self.rest() {
                    cut(piece, false, |piece, end| effects.push(Effect::Send(Out::ResponseBody(piece, end))));
                }
                effects.push(Effect::Send(Out::ResponseTrailers));
                self.end(asked, effects);
            }
            _ => {}
        }
    }

    fn head(&mut self, head: &Head, notes: &Notes, asked: &Asked<'_>, rules: &Rules, effects: &mut Effects) {
        self.status = head.text(":status").and_then(|s| s.parse().ok()).unwrap_or(0);
        let kind = head.text("content-type").unwrap_or_default().to_ascii_lowercase();
        self.events = kind.starts_with("text/event-stream");
        let plain = head.text("content-encoding").is_none_or(|e| e.eq_ignore_ascii_case("identity"));
        if plain && (200..300).contains(&self.status) {
            if self.events {
                self.watch = Watch::events(false);
            } else if asked.generates {
                self.watch = Watch::json();
            }
        }
        let (mut set, mut remove): (Vec<Set>, Vec<&'static str>) = (Vec::new(), Vec::new());
        if plain && let Some((client, replica)) = asked.renamed {
            self.restore = Some(Restore::new(replica, client, self.events));
            remove.push("content-length");
        }
        if rules.testing
            && let Some(served) = notes.served
        {
            set.push((names::TEST_SERVED, served.to_string().into()));
        }
        effects.push(Effect::Send(Out::ResponseHead { set, remove }));
        if let Some(served) = notes.served {
            effects.push(Effect::Served(served));
        }
        let patience = head.text("retry-after").and_then(|s| s.parse().ok());
        if let Some(failure) = verdict(self.status, patience, asked.generates) {
            self.release(Release::Failed(failure), effects);
        }
    }

    fn body(&mut self, data: Bytes, end: bool, asked: &Asked<'_>, effects: &mut Effects) {
        self.bytes += data.len() as u64;
        let mut send = |piece, end| effects.push(Effect::Send(Out::ResponseBody(piece, end)));
        let Some(restore) = &mut self.restore else {
            // A watch that takes nothing out gives back what it was given.
            for piece in self.watch.see(data) {
                cut(piece, false, &mut send);
            }
            if end {
                mark_end(effects);
            }
            return self.said(end, asked, effects);
        };
        for piece in restore.push(&data) {
            cut(piece, false, &mut send);
        }
        self.watch.see(data);
        if end {
            if let Some(piece) = self.rest() {
                cut(piece, false, &mut send);
            }
            mark_end(effects);
        }
        self.said(end, asked, effects);
    }

    /// What was held back.
    fn rest(&mut self) -> Option<Bytes> {
        self.restore.as_mut().and_then(Restore::finish)
    }

    /// Tells what the answer has said so far.
    fn said(&mut self, end: bool, asked: &Asked<'_>, effects: &mut Effects) {
        if self.watch.first_token() && !self.spoke {
            self.spoke = true;
            if !self.released {
                effects.push(Effect::FirstToken);
            }
        }
        let tokens = self.watch.tokens();
        if tokens > self.tokens {
            self.tokens = tokens;
            if !self.released {
                effects.push(Effect::Progress(tokens));
            }
        }
        if end {
            self.end(asked, effects);
        }
    }

    fn end(&mut self, asked: &Asked<'_>, effects: &mut Effects) {
        self.stage = Stage::Over;
        self.watch.end();
        if asked.stores
            && let Some(id) = self.watch.id()
        {
            effects.push(Effect::Stored(id.into()));
        }
        self.tokens = self.tokens.max(self.watch.tokens());
        self.release(Release::Finished(self.watch.outcome()), effects);
    }

    /// Tells the ending, once.
    pub(super) fn release(&mut self, release: Release, effects: &mut Effects) {
        if !std::mem::replace(&mut self.released, true) {
            effects.push(Effect::Release(release));
        }
    }
}

/// Marks the last piece as the end, or sends an empty one that is.
fn mark_end(effects: &mut Effects) {
    match effects.last_mut() {
        Some(Effect::Send(Out::ResponseBody(_, end))) => *end = true,
        _ => effects.push(Effect::Send(Out::ResponseBody(Bytes::new(), true))),
    }
}

/// What a status says about the replica; `None`: nothing bad.
fn verdict(status: u16, patience: Option<f64>, generates: bool) -> Option<Failure> {
    let asked = patience.map(|s| s.clamp(0.0, MAX_PATIENCE));
    match status {
        429 => Some(Failure::BackPressure { retry_after: asked }),
        503 if asked.is_some() => Some(Failure::BackPressure { retry_after: asked }),
        502 | 503 => Some(Failure::Status(status)),
        // Of an endpoint that isn't known, it can't be told whose fault an error is.
        500 if generates => Some(Failure::Status(status)),
        // The gateway's own word for a replica that didn't answer in time.
        504 => Some(Failure::Timeout),
        400.. => Some(Failure::Blameless),
        _ => None,
    }
}
