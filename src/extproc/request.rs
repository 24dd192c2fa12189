//! The way in: headers and body of a request are held until it is decided where it goes, then flow on.

use super::address::join;
use super::body::{Held, cut};
use super::effect::{Effect, Effects, Wish};
use super::intent::{Intent, Rules};
use super::message::{Head, In, Mode, Notes, Out, Set};
use super::model_name;
use super::policies::Policies;
use super::refuse::Refused;
use super::truncated::complete;
use crate::openai::{ErrorShape, Problem, Shape};
use crate::proxy::{Prompt, PromptReader};
use crate::router::Ask;
use std::net::SocketAddr;

/// What a step needs beside the message.
pub struct Context<'a> {
    /// The door's rules.
    pub rules: &'a Rules,
    /// What names stand for.
    pub policies: &'a Policies,
    /// Reads prompts.
    pub prompts: &'a mut PromptReader,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No headers yet.
    #[default]
    Start,
    /// The body is coming and says where to go.
    Reading,
    /// A place is being found.
    Placing,
    /// It is known where it goes: everything passes.
    Flowing,
    /// All of it has passed, or none of it will.
    Over,
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There was none.
    Head,
    /// With its last piece.
    Body,
    /// With trailers.
    Trailers,
}

/// The request as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Request {
    stage: Stage,
    intent: Intent,
    subset: Option<Vec<super::address::Wanted>>,
    held: Held,
    end: Option<End>,
    /// Look again when so much is held.
    look_at: usize,
    /// The length after a change, where it is known.
    length: Option<u64>,
    changed: bool,
    /// Names of the model: the client's, and the one that the replica is asked for.
    pub(super) renamed: Option<(String, String)>,
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) bytes: u64,
}

impl Request {
    pub(super) fn intent(&self) -> &Intent {
        &self.intent
    }

    pub(super) fn errors(&self) -> ErrorShape {
        self.intent.shape.map_or(ErrorShape::OpenAi, ErrorShape::from)
    }

    /// Has all of it been passed on, or nothing?
    pub(super) fn over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Bytes held in memory.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// An answer came before the request was passed on: nothing of it will be.
    pub(super) fn abandon(&mut self, effects: &mut Effects) {
        if self.stage == Stage::Placing {
            effects.push(Effect::Abandon);
        }
        if self.stage != Stage::Flowing {
            self.close();
        }
    }

    fn close(&mut self) {
        self.stage = Stage::Over;
        self.held = Held::default();
    }

    /// Takes in what Envoy says of the request.
    ///
    /// # Errors
    /// It is refused.
    pub(super) fn take(
        &mut self,
        input: In,
        notes: Notes,
        cx: &mut Context<'_>,
        effects: &mut Effects,
    ) -> Result<(), Refused> {
        match (self.stage, input) {
            (Stage::Start, In::RequestHead(head, end)) => self.head(&head, end, notes, cx, effects),
            (Stage::Reading | Stage::Placing, In::RequestBody(data, end)) if self.end.is_none() => {
                self.bytes += data.len() as u64;
                self.held.push(data);
                self.end = end.then_some(End::Body);
                self.consider(cx, effects)
            }
            (Stage::Reading | Stage::Placing, In::RequestTrailers) if self.end.is_none() => {
                self.end = Some(End::Trailers);
                self.consider(cx, effects)
            }
            (Stage::Flowing, In::RequestBody(data, end)) => {
                self.bytes += data.len() as u64;
                cut(data, end, |piece, end| effects.push(Effect::Send(Out::RequestBody(piece, end))));
                if end {
                    self.close();
                }
                Ok(())
            }
            (Stage::Flowing, In::RequestTrailers) => {
                effects.push(Effect::Send(Out::RequestTrailers));
                self.close();
                Ok(())
            }
            // What comes after the end, or twice, changes nothing: a second end would corrupt the body.
            _ => Ok(()),
        }
    }

    fn head(
        &mut self,
        head: &Head,
        end: bool,
        notes: Notes,
        cx: &mut Context<'_>,
        effects: &mut Effects,
    ) -> Result<(), Refused> {
        self.intent = Intent::of(head, cx.rules, cx.policies);
        self.subset = notes.subset;
        self.end = end.then_some(End::Head);
        let withheld = notes.modes.is_some_and(|(request, _)| request == Mode::Withheld);
        if withheld {
            self.end = Some(End::Head);
        }
        self.look_at = cx.rules.decide;
        if self.intent.shape.is_some() && !withheld {
            self.stage = Stage::Reading;
            return self.consider(cx, effects);
        }
        let ask = Ask { choices: 1, previous_response: self.intent.stored.take(), ..Ask::default() };
        self.place(ask, cx, effects);
        Ok(())
    }

    /// Decides if there is enough to decide by.
    fn consider(&mut self, cx: &mut Context<'_>, effects: &mut Effects) -> Result<(), Refused> {
        let (Stage::Reading, Some(shape)) = (self.stage, self.intent.shape) else { return Ok(()) };
        if self.end.is_some() {
            return self.decide(shape, cx, effects);
        }
        if self.held.len() >= self.look_at {
            // Without the model in what is there: look again when there is twice as much.
            self.look_at = self.held.len().saturating_mul(2);
            if self.decide_early(shape, cx, effects) {
                return Ok(());
            }
            if self.held.len() >= cx.rules.held {
                return Err(Problem::payload_too_large(cx.rules.held as u64).into());
            }
        }
        Ok(())
    }

    /// By the whole body.
    fn decide(&mut self, shape: Shape, cx: &mut Context<'_>, effects: &mut Effects) -> Result<(), Refused> {
        let text = self.held.text();
        let changed = rename(&text, &self.intent, cx.policies);
        let body = changed.as_ref().map_or(&*text, |(body, _)| body);
        let prompt = cx.prompts.read(shape, body).map_err(|bad| Problem::bad_json(&bad))?;
        if prompt.ask.model.is_none() {
            return Err(Refused::no_model());
        }
        if self.end == Some(End::Body) {
            self.length = Some(body.len() as u64);
        }
        self.adopt(changed, prompt, cx, effects);
        Ok(())
    }

    /// By its beginning; false if that doesn't say enough. A fault in it is left for the whole body to show.
    fn decide_early(&mut self, shape: Shape, cx: &mut Context<'_>, effects: &mut Effects) -> bool {
        let text = self.held.text();
        let changed = rename(&text, &self.intent, cx.policies);
        let body = changed.as_ref().map_or(&*text, |(body, _)| body);
        // A name that breaks off would be completed to another one.
        if model_name::find(body).name.is_none() {
            return false;
        }
        let Ok(mut prompt) = cx.prompts.read(shape, &complete(body)) else { return false };
        if let Some(all) = self.intent.content_length {
            let here = text.len() as u64;
            let grown = body.len() as u64;
            self.length = Some((all + grown).saturating_sub(here));
            // The rest is believed to be text as much as the beginning is.
            let more = all.saturating_sub(here) as f64 / (here as f64).max(1.0);
            prompt.ask.text_bytes += (prompt.ask.text_bytes as f64 * more) as u64;
        }
        self.adopt(changed, prompt, cx, effects);
        true
    }

    fn adopt(
        &mut self,
        changed: Option<(Vec<u8>, (String, String))>,
        prompt: Prompt,
        cx: &mut Context<'_>,
        effects: &mut Effects,
    ) {
        if let Some((body, names)) = changed {
            self.held.replace(body);
            self.renamed = Some(names);
            self.changed = true;
        }
        self.stream = prompt.stream;
        self.model.clone_from(&prompt.ask.model);
        self.place(prompt.ask, cx, effects);
    }

    fn place(&mut self, ask: Ask, cx: &Context<'_>, effects: &mut Effects) {
        self.stage = Stage::Placing;
        effects.push(Effect::Place(Box::new(Wish {
            ask: Ask { fallbacks: cx.rules.fallbacks, ..ask },
            subset: self.subset.take(),
            follow: self.intent.follow.take(),
            wishes: self.intent.wishes.clone(),
        })));
    }

    /// A place was found: everything that is held goes on. False if nobody waited for one.
    pub(super) fn placed(&mut self, destinations: &[SocketAddr], effects: &mut Effects) -> bool {
        if self.stage != Stage::Placing {
            return false;
        }
        let mut set: Vec<Set> = Vec::new();
        let mut remove = Vec::new();
        match self.length {
            Some(length) => set.push(("content-length", length.to_string().into())),
            None if self.changed => remove.push("content-length"),
            None => {}
        }
        if self.renamed.is_some() {
            // The answer has the name in it, and is to be read.
            remove.push("accept-encoding");
        }
        let destination = join(destinations);
        effects.push(Effect::Send(Out::RequestHead { set, remove, destination }));
        let last = self.end == Some(End::Body);
        if self.end != Some(End::Head) {
            self.held.drain(last, |piece, end| effects.push(Effect::Send(Out::RequestBody(piece, end))));
        }
        if self.end == Some(End::Trailers) {
            effects.push(Effect::Send(Out::RequestTrailers));
        }
        if self.end.is_some() {
            self.close();
        } else {
            self.stage = Stage::Flowing;
        }
        true
    }
}

/// The body with another model in it, and both names, if another one is wanted.
fn rename(body: &[u8], intent: &Intent, policies: &Policies) -> Option<(Vec<u8>, (String, String))> {
    if intent.rewrite.is_none() && policies.rewrites.is_empty() {
        return None;
    }
    let named = model_name::find(body);
    let name = named.name?;
    let target = intent.rewrite.as_deref().or_else(|| policies.target(&name, &intent.request_id))?;
    if target == name {
        return None;
    }
    Some((model_name::renamed(body, &named.at, target), (name, target.to_owned())))
}
