//! One HTTP request through Envoy's eyes: the whole state machine of a stream, without any I/O.
//!
//! Messages go in, effects come out. Under full duplex Envoy forwards nothing that isn't sent back, so the promises are:
//! every byte of both bodies comes out once, in order, in pieces that Envoy takes; headers come before the body and
//! trailers after; the end is told exactly once; and what was booked for the request is given back exactly once, whichever
//! way the stream ends. None of it depends on Envoy keeping to an order: what makes no sense is left without an answer.

use super::effect::{Effect, Effects, Release};
use super::message::{In, Mode, Notes, Out};
use super::refuse::Refused;
use super::request::{Context, Request};
use super::response::{Answer, Asked};
use crate::openai::{ErrorShape, Kind, Shape, Usage};
use std::net::SocketAddr;

/// The state of one stream.
#[derive(Debug, Default)]
pub struct Exchange {
    request: Request,
    answer: Answer,
    /// Something is booked for it.
    booked: bool,
    /// Nothing more is said.
    over: bool,
    /// How Envoy was told to send bodies.
    modes: Option<(Mode, Mode)>,
    refused: Option<Kind>,
}

/// What is known of a request, for metrics and logs.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Its id.
    pub id: &'a str,
    /// Which API.
    pub shape: Option<Shape>,
    /// The model that a replica is asked for.
    pub model: Option<&'a str>,
    /// Is the answer a stream?
    pub stream: bool,
    /// Status of the answer, ours or the replica's; 0 if there was none.
    pub status: u16,
    /// Why it was refused here.
    pub refused: Option<Kind>,
    /// The answer has ended.
    pub whole: bool,
    /// The answer said inside that it failed.
    pub error: bool,
    /// Token counts of the replica.
    pub usage: Option<Usage>,
    /// Tokens seen.
    pub tokens: u32,
    /// Bytes of the bodies.
    pub bytes: (u64, u64),
}

impl Exchange {
    /// A message came.
    ///
    /// # Errors
    /// Envoy is set up in a way that can't work; the message says how to set it up.
    pub fn take(
        &mut self,
        input: In,
        notes: Notes,
        cx: &mut Context<'_>,
        effects: &mut Effects,
    ) -> Result<(), &'static str> {
        if self.over {
            return Ok(());
        }
        if let Some(modes) = notes.modes
            && self.modes.is_none()
        {
            self.modes = Some(modes);
            if modes.0 == Mode::Other || modes.1 == Mode::Other {
                return Err(
                    "set request_body_mode and response_body_mode to FULL_DUPLEX_STREAMED (or the latter to NONE)",
                );
            }
        }
        match input {
            In::RequestHead(..) | In::RequestBody(..) | In::RequestTrailers => {
                if let Err(refused) = self.request.take(input, notes, cx, effects) {
                    self.refuse(&refused, effects);
                }
            }
            In::ResponseHead(..) | In::ResponseBody(..) | In::ResponseTrailers => {
                if !self.answer.begun() && matches!(input, In::ResponseHead(..)) {
                    self.request.abandon(effects);
                }
                let shape = self.request.intent().shape;
                let asked = Asked {
                    generates: shape.is_some(),
                    renamed: self.request.renamed.as_ref(),
                    stores: shape == Some(Shape::Responses),
                };
                let from = effects.len();
                self.answer.take(input, &notes, &asked, cx.rules, effects);
                self.settle(from, effects);
            }
        }
        Ok(())
    }

    /// The place that was wished for, or why there is none.
    pub fn placed(&mut self, place: Result<&[SocketAddr], &Refused>, effects: &mut Effects) {
        if self.over {
            if place.is_ok() {
                effects.push(Effect::Release(Release::Cancelled));
            }
            return;
        }
        match place {
            Ok(destinations) => {
                // Booked before anything is said, so that whatever follows can give it back.
                if self.request.placed(destinations, effects) {
                    self.booked = true;
                } else {
                    effects.push(Effect::Release(Release::Cancelled));
                }
            }
            Err(refused) => self.refuse(refused, effects),
        }
    }

    /// The stream has ended: what is still booked is given back.
    pub fn closed(&mut self, effects: &mut Effects) {
        self.over = true;
        let from = effects.len();
        let release = if self.unseen() { Release::Unseen } else { Release::Cancelled };
        self.answer.release(release, effects);
        self.settle(from, effects);
    }

    /// Bytes held in memory for it.
    pub fn held(&self) -> usize {
        self.request.held()
    }

    /// There is no memory for more of it.
    pub fn no_room(&mut self, effects: &mut Effects) {
        self.refuse(&Refused::no_endpoints(2), effects);
    }

    /// What is known of it.
    pub fn facts(&self) -> Facts<'_> {
        let intent = self.request.intent();
        Facts {
            id: &intent.request_id,
            shape: intent.shape,
            model: self.request.model.as_deref(),
            stream: self.request.stream || self.answer.events,
            status: self.answer.status,
            refused: self.refused,
            whole: self.answer.over(),
            error: self.answer.error(),
            usage: self.answer.usage(),
            tokens: self.answer.tokens(),
            bytes: (self.request.bytes, self.answer.bytes),
        }
    }

    /// Did the whole request go on, and will its answer not be shown?
    fn unseen(&self) -> bool {
        let withheld = match self.modes {
            Some((_, answer)) => answer == Mode::Withheld,
            // An Envoy that doesn't say how it was set up: an answer that has begun is shown to its end.
            None => !self.answer.begun(),
        };
        withheld && self.request.over()
    }

    fn refuse(&mut self, refused: &Refused, effects: &mut Effects) {
        let errors: ErrorShape = self.request.errors();
        let answer = refused.answer(errors, &self.request.intent().request_id);
        self.answer.status = answer.status;
        self.refused = Some(refused.problem.kind);
        self.over = true;
        effects.push(Effect::Send(Out::Immediate(Box::new(answer))));
        effects.push(Effect::Over);
    }

    /// Only what is booked is given back, and only once.
    fn settle(&mut self, from: usize, effects: &mut Effects) {
        let mut at = from;
        while at < effects.len() {
            if matches!(effects[at], Effect::Release(_)) && !std::mem::take(&mut self.booked) {
                effects.remove(at);
            } else {
                at += 1;
            }
        }
    }
}
