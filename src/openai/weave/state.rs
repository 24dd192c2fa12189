//! A stream that may be continued: what its client sees, and what is remembered for that.

use super::super::sse::Facts;
use super::super::usage::Usage;
use super::event::{self, Event, Read};
use super::recipe::{Recipe, decimal};
use super::splitter::Splitter;
use crate::openai::completions::token_ids;
use bytes::Bytes;
use std::ops::Range;

/// Watches a stream, takes the token ids out of it that only the router asked for, and remembers them. Once its engine
/// has died, [`Weave::continuation`] says what to ask another one for, and what that says is made to look like the rest.
#[derive(Debug)]
pub struct Weave {
    recipe: Recipe,
    facts: Facts,
    splitter: Splitter,
    memory: Option<Memory>,
    /// As the first engine wrote them.
    names: Option<Names>,
    /// Tokens of the prompt.
    prompt: Option<u32>,
    /// Text (as JSON writes it) that the client has got behind the last place where a continuation can begin.
    since: Vec<u8>,
    /// So much of it the present engine has said.
    replayed: usize,
    /// Of the present event's text, so much has been sent by an engine before.
    skip: usize,
    /// The continuation says something else than what was sent already.
    diverged: bool,
    /// Most bytes of memory.
    limit: usize,
    /// Tokens of the answer that engines before the present one have made.
    base: u32,
    continued: bool,
    /// The reason why the answer ends was passed on.
    finished: bool,
    /// The engine said that it failed. The event is kept, in case that nobody can do better.
    failed: Option<Bytes>,
    usage: Option<Usage>,
    /// Events with output that engines before the present one have sent.
    before: u64,
}

#[derive(Debug, Default)]
struct Memory {
    /// Of the prompt, then of the answer.
    ids: Vec<u32>,
    /// Of `ids`: up to here a continuation can begin. Behind an event of one token with text: then no half of a
    /// character is held back.
    kept: usize,
}

/// Id, time and model of a stream, quotes included.
#[derive(Debug)]
struct Names([Box<[u8]>; 3]);

/// Longest of the three names that are kept.
const MAX_NAME: usize = 1024;
/// An event may take this many times the memory's limit while it is read: ids are written as digits.
const EVENT: usize = 8;

impl Weave {
    /// For a request of this recipe; remembers at most `limit` bytes.
    pub fn new(recipe: Recipe, limit: usize) -> Self {
        Weave {
            recipe,
            facts: Facts::default(),
            splitter: Splitter::default(),
            memory: Some(Memory::default()),
            names: None,
            prompt: None,
            since: Vec::new(),
            replayed: 0,
            skip: 0,
            diverged: false,
            limit,
            base: 0,
            continued: false,
            finished: false,
            failed: None,
            usage: None,
            before: 0,
        }
    }

    /// What is known of the stream so far, over all its engines.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Token counts of the whole answer, once told.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Was it continued?
    pub fn continued(&self) -> bool {
        self.continued
    }

    /// Events with output that the present engine has sent.
    pub fn of_this_engine(&self) -> u64 {
        self.facts.tokens.saturating_sub(self.before)
    }

    /// Bytes remembered.
    pub fn bytes(&self) -> usize {
        let memory = self.memory.as_ref().map_or(0, |m| m.ids.capacity() * size_of::<u32>());
        memory + self.recipe.bytes() + self.splitter.len() + self.since.len()
    }

    /// Remember nothing: it can't be continued any more.
    pub fn forget(&mut self) {
        self.memory = None;
    }

    /// The engine said that it failed: treat it like one that died.
    pub fn failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The continuation isn't one: it says something else than what the client has got already. Nothing of that went out.
    pub fn diverged(&self) -> bool {
        self.diverged
    }

    /// The engine's own words for that.
    pub fn last_words(&mut self) -> Option<Bytes> {
        self.failed.take()
    }

    /// Has the stream come to its own end?
    pub fn done(&self) -> bool {
        self.facts.done
    }

    /// Takes in a chunk; returns what goes to the client.
    pub fn push(&mut self, chunk: &Bytes) -> Option<Bytes> {
        let mut out = Vec::with_capacity(chunk.len() + 64);
        let mut splitter = std::mem::take(&mut self.splitter);
        splitter.push(chunk);
        splitter.each(|event| {
            self.event(event, &mut out);
            self.failed.is_none() && !self.diverged
        });
        self.splitter = splitter;
        if self.splitter.len() > self.limit.saturating_mul(EVENT) {
            // Nothing that an engine says: it passes as it is.
            self.forget();
            out.extend(self.splitter.rest());
        }
        (!out.is_empty()).then(|| out.into())
    }

    /// The connection ended in good order: what is left of the stream.
    pub fn finish(&mut self) -> Option<Bytes> {
        let rest = self.splitter.rest();
        (!rest.is_empty()).then(|| rest.into())
    }

    fn event(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let only_usage = self.facts.take(bytes);
        match event::read(bytes) {
            Read::Other | Read::Done => out.extend_from_slice(bytes),
            Read::Json(event) if self.breaks(bytes, &event) => {
                self.failed = Some(Bytes::copy_from_slice(bytes))
            }
            Read::Json(event) => {
                self.learn(bytes, &event);
                if only_usage {
                    self.count(bytes, &event);
                    match self.usage.filter(|_| self.continued) {
                        _ if !self.recipe.wants_usage => {}
                        Some(whole) => self.tell_usage(whole, out),
                        // Whatever else the first engine says there, it says.
                        None => out.extend_from_slice(bytes),
                    }
                } else if self.continued {
                    self.write(bytes, &event, out);
                } else {
                    self.pass(bytes, &event, out);
                }
            }
        }
    }

    /// Does the event say that the engine has given up?
    fn breaks(&self, bytes: &[u8], event: &Event) -> bool {
        let reason = event.choice.finish.clone().and_then(|at| bytes.get(at)).unwrap_or_default();
        !self.finished && (event.error || matches!(reason, b"\"abort\"" | b"\"error\""))
    }

    fn learn(&mut self, bytes: &[u8], event: &Event) {
        let choice = &event.choice;
        self.name(bytes, event);
        let text = choice.text.clone().and_then(|at| bytes.get(at)).unwrap_or(b"\"\"");
        let text = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
        self.follow(text);
        self.finished |= choice.finish.is_some();
        self.diverged |= self.finished && self.replayed < self.since.len();
        let one = choice.ids.clone().and_then(|at| bytes.get(at)).is_some_and(|ids| !ids.contains(&b','));
        // A text that ends with it may be half of a character that is still to come.
        let whole = !text.ends_with("\u{fffd}".as_bytes()) && !text.ends_with(b"\\ufffd");
        let clean = one && whole && !text.is_empty();
        if let Some(memory) = &mut self.memory {
            let blind = choice.says() && (choice.ids.is_none() || self.prompt.is_none());
            memory.learn(bytes, event, clean);
            if choice.other || blind || event.choices > 1 || self.bytes() > self.limit {
                self.memory = None;
            }
        }
        // Without memory nothing will have to be said again.
        if clean || self.memory.is_none() {
            self.since.drain(..self.replayed);
            self.replayed = 0;
        }
    }

    /// Names and prompt, from the first events of the first engine.
    fn name(&mut self, bytes: &[u8], event: &Event) {
        let part = |at: &Option<Range<usize>>| at.clone().and_then(|at| bytes.get(at)).unwrap_or_default();
        if self.continued {
            return;
        }
        if self.names.is_none() && event.has_choices {
            let names = [&event.id, &event.created, &event.model].map(part);
            if names.iter().any(|n| n.is_empty() || n.len() > MAX_NAME) {
                self.memory = None;
            } else {
                self.names = Some(Names(names.map(Box::from)));
            }
        }
        if self.prompt.is_none()
            && event.prompt_ids.is_some()
            && let Some(memory) = &mut self.memory
        {
            memory.extend(part(&event.prompt_ids));
            memory.kept = memory.ids.len();
            self.prompt = u32::try_from(memory.kept).ok();
        }
    }

    /// The engine says `text`: is it what was sent already, as far as it goes?
    fn follow(&mut self, text: &[u8]) {
        let sent = self.since.get(self.replayed..).unwrap_or_default();
        self.skip = sent.len().min(text.len());
        self.diverged |= sent.get(..self.skip) != text.get(..self.skip);
        self.replayed += self.skip;
        let new = text.get(self.skip..).unwrap_or_default();
        self.since.extend_from_slice(new);
        self.replayed += new.len();
    }

    fn count(&mut self, bytes: &[u8], event: &Event) {
        let told = event.usage.clone().and_then(|at| bytes.get(at)).and_then(Usage::parse);
        self.usage = told.map(|u| match self.prompt.filter(|_| self.continued) {
            Some(prompt_tokens) => Usage {
                prompt_tokens,
                completion_tokens: self.base.saturating_add(u.completion_tokens),
                cached_tokens: u.cached_tokens.map(|c| c.min(prompt_tokens)),
            },
            None => u,
        });
    }

    /// An event of the first engine, as it would be had nobody asked for ids.
    fn pass(&self, bytes: &[u8], event: &Event, out: &mut Vec<u8>) {
        if self.recipe.wants_ids {
            return out.extend_from_slice(bytes);
        }
        let choice = &event.choice;
        if event.choices == 1
            && choice.text.is_none()
            && choice.finish.is_none()
            && !choice.role
            && !choice.other
        {
            // An event that was made only to tell ids.
            return;
        }
        let mut gone: Vec<Range<usize>> = event.prompt_ids.iter().chain(&choice.ids).cloned().collect();
        gone.sort_by_key(|at| at.start);
        let mut from = 0;
        for at in gone {
            out.extend_from_slice(bytes.get(from..at.start).unwrap_or_default());
            out.extend_from_slice(b"null");
            from = at.end;
        }
        out.extend_from_slice(bytes.get(from..).unwrap_or_default());
    }

    /// The head of an event in the first engine's name.
    fn head(&self, out: &mut Vec<u8>) {
        let Some(Names([id, created, model])) = &self.names else { return };
        let object: &[u8] =
            if self.recipe.chat { b"\"chat.completion.chunk\"" } else { b"\"text_completion\"" };
        let members: [(&[u8], &[u8]); 4] = [
            (b"data: {\"id\":", id),
            (b",\"object\":", object),
            (b",\"created\":", created),
            (b",\"model\":", model),
        ];
        for (name, value) in members {
            out.extend_from_slice(name);
            out.extend_from_slice(value);
        }
    }

    /// An event of a continuation, in the words of the first engine.
    fn write(&self, bytes: &[u8], event: &Event, out: &mut Vec<u8>) {
        let choice = &event.choice;
        let text = choice
            .text
            .clone()
            .and_then(|at| bytes.get(at.start + 1 + self.skip..at.end - 1))
            .unwrap_or_default();
        if self.diverged || event.choices != 1 || (text.is_empty() && choice.finish.is_none()) {
            return;
        }
        let part = |at: &Option<Range<usize>>| at.clone().and_then(|at| bytes.get(at));
        self.head(out);
        out.extend_from_slice(b",\"choices\":[{\"index\":0,");
        out.extend_from_slice(if self.recipe.chat { b"\"delta\":{\"content\":" } else { b"\"text\":" });
        out.push(b'"');
        out.extend_from_slice(text);
        out.push(b'"');
        if self.recipe.chat {
            out.push(b'}');
        }
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":");
        out.extend_from_slice(part(&choice.finish).unwrap_or(b"null"));
        // A chat tells it with its end only.
        let tells = !self.recipe.chat || choice.finish.is_some();
        if let Some(reason) = part(&choice.stop_reason).filter(|_| tells) {
            out.extend_from_slice(b",\"stop_reason\":");
            out.extend_from_slice(reason);
        }
        out.extend_from_slice(b",\"token_ids\":");
        out.extend_from_slice(part(&choice.ids).filter(|_| self.recipe.wants_ids).unwrap_or(b"null"));
        out.extend_from_slice(b"}]");
        if let Some(print) = part(&event.fingerprint) {
            out.extend_from_slice(b",\"system_fingerprint\":");
            out.extend_from_slice(print);
        }
        out.extend_from_slice(b"}\n\n");
    }

    fn tell_usage(&self, usage: Usage, out: &mut Vec<u8>) {
        self.head(out);
        out.extend_from_slice(b",\"choices\":[],\"usage\":{\"prompt_tokens\":");
        decimal(out, usage.prompt_tokens);
        out.extend_from_slice(b",\"total_tokens\":");
        decimal(out, usage.prompt_tokens.saturating_add(usage.completion_tokens));
        out.extend_from_slice(b",\"completion_tokens\":");
        decimal(out, usage.completion_tokens);
        if let Some(cached) = usage.cached_tokens {
            out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
            decimal(out, cached);
            out.push(b'}');
        }
        out.extend_from_slice(b"}}\n\n");
    }

    /// The engine died: is nothing missing but words that can be said here? Then these are they.
    pub fn closing(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        if !self.finished {
            let all = self.memory.as_ref().is_some_and(|m| m.kept == m.ids.len()) && self.since.is_empty();
            if !all || self.recipe.max_tokens != self.made() {
                return None;
            }
            self.head(&mut out);
            out.extend_from_slice(b",\"choices\":[{\"index\":0,");
            out.extend_from_slice(if self.recipe.chat { b"\"delta\":{}" } else { b"\"text\":\"\"" });
            out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n");
        }
        if self.usage.is_none()
            && let Some(memory) = &self.memory
            && let Some(prompt_tokens) = self.prompt
        {
            let all = u32::try_from(memory.ids.len()).unwrap_or(u32::MAX);
            let completion_tokens = all.saturating_sub(prompt_tokens);
            self.usage = Some(Usage { prompt_tokens, completion_tokens, cached_tokens: None });
            if self.recipe.wants_usage {
                self.tell_usage(self.usage?, &mut out);
            }
        }
        if self.recipe.wants_usage && self.usage.is_none() {
            return None;
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.facts.done = true;
        self.facts.finished = true;
        Some(out.into())
    }

    /// The engine died: the body of a request to `/v1/completions` that continues it. `context` is the model's longest
    /// prompt and answer together. `None`: it can't be continued.
    pub fn continuation(&self, context: Option<u32>) -> Option<Vec<u8>> {
        let memory = self.memory.as_ref().filter(|_| !self.finished)?;
        let (made, prompt) = (self.made()?, self.prompt?);
        if self.recipe.wants_ids && (memory.kept != memory.ids.len() || !self.since.is_empty()) {
            // The client has seen ids that would come again.
            return None;
        }
        let most = match self.recipe.max_tokens {
            Some(max) => max,
            None => context?.checked_sub(prompt)?,
        };
        let left = most.checked_sub(made).filter(|n| *n > 0)?;
        Some(self.recipe.body(memory.ids.get(..memory.kept)?, left))
    }

    /// Another engine continues from here on.
    pub fn resume(&mut self) {
        self.splitter.rest();
        self.failed = None;
        self.continued = true;
        self.before = self.facts.tokens;
        self.facts.error = false;
        if let Some(memory) = &mut self.memory {
            memory.ids.truncate(memory.kept);
        }
        self.replayed = 0;
        self.base = self.made().unwrap_or(self.base);
    }

    /// Tokens of the answer up to where a continuation can begin.
    fn made(&self) -> Option<u32> {
        u32::try_from(self.memory.as_ref()?.kept).ok()?.checked_sub(self.prompt?)
    }
}

impl Memory {
    fn learn(&mut self, bytes: &[u8], event: &Event, clean: bool) {
        if let Some(list) = event.choice.ids.clone().and_then(|at| bytes.get(at)) {
            self.extend(list);
        }
        if clean {
            self.kept = self.ids.len();
        }
    }

    fn extend(&mut self, list: &[u8]) {
        let ids = &mut self.ids;
        token_ids(list, |block| {
            ids.extend(block.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)));
        });
    }
}
