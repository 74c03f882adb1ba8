//! Endpoints of reservations: a guaranteed rate of a class between two sites for a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penstock_calendar::{END_OF_TIME, RATE_MAX, ReserveError};
use penstock_http::{QueryParams, RawQuery, Refused, Unavailable};
use penstock_units::{BitRate, display_duration};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::objects::seconds;
use super::{ApiClient, PARAMETERS_PAGE, body, number};
use crate::problem::{ProblemDetails, unavailable};
use crate::repository::reservations::{self, ListedReservation, ReservationRequest};
use crate::repository::{Audit, now_ms};
use crate::shared::ControllerState;
use crate::use_cases::reserve;

/// A reservation to make.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveBody {
    /// Class of work that may use it.
    pub class: String,
    /// Site that sends the traffic.
    pub source: String,
    /// Site that receives the traffic.
    pub destination: String,
    /// Rate in bits per second.
    pub rate_bps: u64,
    /// Start in Unix seconds.
    pub begin_unix_seconds: i64,
    /// End in Unix seconds.
    pub end_unix_seconds: i64,
    /// Set to carry it over a circuit: a path with a rate that no other traffic shares.
    #[serde(default)]
    pub circuit: bool,
}

/// A circuit of a reservation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Circuit)]
pub struct CircuitFacts {
    /// `booked`, `up`, `broken` (the controller tries to set it up again) or `released`.
    pub state: String,
    /// Time of the last change of `state`.
    pub since_unix_seconds: f64,
    /// Reason why the circuit is broken; null for none.
    pub reason: Option<String>,
    /// Address of each host, by its name, that leads over the circuit.
    pub addresses: BTreeMap<String, String>,
    /// Rate of the last measurement, by the counters of the circuit on its links.
    pub measured_bps: i64,
    /// Time of the last measurement; null where there was none.
    pub checked_unix_seconds: Option<f64>,
    /// True where the counters agree with the rates that orders report; null while these are too low for a verdict.
    pub verified: Option<bool>,
}

/// A reservation with its circuit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Reservation)]
pub struct ReservationFacts {
    /// Number of the reservation.
    pub id: i64,
    /// Name of the token that made the reservation.
    pub client: String,
    /// Class of work that the rate is reserved for; null for none.
    pub class: Option<String>,
    /// Site that sends the traffic.
    pub source: String,
    /// Site that receives the traffic.
    pub destination: String,
    /// Reserved rate of file bytes.
    pub rate_bps: i64,
    /// Begin of the reservation.
    pub begin_unix_seconds: f64,
    /// End of the reservation.
    pub end_unix_seconds: f64,
    /// Names of the links on which the rate is reserved.
    pub path: Vec<String>,
    /// True from begin to end.
    pub active: bool,
    /// Circuit that carries the traffic; null where none was asked for.
    pub circuit: Option<CircuitFacts>,
}

/// Reservations that have not ended.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Reservations {
    /// Reservations that have not ended, by their begin.
    pub reservations: Vec<ReservationFacts>,
}

/// Makes a reservation if links have capacity throughout; a refusal states what would fit.
#[utoipa::path(post, path = "/api/v1/reservations", operation_id = "reserve", security(("token" = [])), request_body = ReserveBody, responses(
    (status = 201, body = ReservationFacts, description = "The reservation"), Refused,
    Unavailable))]
pub(super) async fn make(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<ReservationFacts>), ProblemDetails> {
    let asked: ReserveBody = body(given)?;
    let settings = shared.settings();
    let class = settings.config.class(&asked.class).ok_or_else(|| {
        let text = format!("there is no class '{}': GET /api/v1/classes lists them", asked.class);
        ProblemDetails::field("/class", text)
    })?;
    if !asking.who.may_submit(class) && !asking.who.may_operate() {
        shared.counters.refused();
        let text = format!("the token needs the scope submit:{} or operate", class.name);
        return Err(ProblemDetails::forbidden(text));
    }
    for (pointer, site) in [("/source", &asked.source), ("/destination", &asked.destination)] {
        if !settings.config.is_site(site) {
            return Err(ProblemDetails::field(
                pointer,
                format!("the topology has no site '{site}'"),
            ));
        }
    }
    if !(1..=RATE_MAX.0).contains(&asked.rate_bps) {
        return Err(ProblemDetails::field(
            "/rate_bps",
            format!("give bits per second, up to {RATE_MAX}"),
        ));
    }
    let now = now_ms() / 1000;
    if asked.begin_unix_seconds < 0 {
        return Err(ProblemDetails::field("/begin_unix_seconds", "give seconds since 1970"));
    }
    let begins = asked.begin_unix_seconds.max(now);
    if asked.end_unix_seconds <= begins || asked.end_unix_seconds as u64 >= END_OF_TIME {
        let text = "give seconds since 1970, after its begin and after now";
        return Err(ProblemDetails::field("/end_unix_seconds", text));
    }
    if asked.circuit && shared.provider.is_none() {
        let text =
            "no provider of circuits is configured: leave it out, or add [controller.circuits]";
        return Err(ProblemDetails::field("/circuit", text));
    }
    let wanted = ReservationRequest {
        client: asking.who.name.clone(),
        class: Some(class.name.clone()),
        source: asked.source,
        destination: asked.destination,
        rate_bps: asked.rate_bps as i64,
        begins,
        ends: asked.end_unix_seconds,
        circuit: asked.circuit,
    };
    let length_s = u64::try_from(wanted.ends - wanted.begins).unwrap_or(0);
    let audit = Audit {
        who: asking.who.name,
        peer: asking.peer,
        what: "reserve",
        object: format!("{} to {}", wanted.source, wanted.destination),
        detail: format!(
            "{}{} from {} to {} for {}",
            if wanted.circuit { "a circuit of " } else { "" },
            BitRate(asked.rate_bps),
            wanted.source,
            wanted.destination,
            display_duration(Duration::from_secs(length_s))
        ),
    };
    let made = shared.writer.apply(move |cx| {
        let (wanted, audit) = (wanted.clone(), audit.clone());
        Box::pin(async move { reserve::reserve(cx, &wanted, audit).await })
    });
    let id = match made.await? {
        Ok(id) => id,
        Err(ReserveError::Shortage(full)) => {
            let text = format!("{full}: ask for that, or for another time");
            return Err(ProblemDetails::at(StatusCode::CONFLICT, "/rate_bps", text));
        }
        Err(error) => return Err(ProblemDetails::new(StatusCode::CONFLICT, error.to_string())),
    };
    let all = stored(&shared, Some(id)).await?;
    let one =
        all.into_iter().next().ok_or_else(|| ProblemDetails::not_found("it ended at once"))?;
    Ok((StatusCode::CREATED, Json(one)))
}

async fn stored(
    shared: &ControllerState,
    id: Option<i64>,
) -> Result<Vec<ReservationFacts>, ProblemDetails> {
    let now = now_ms();
    let rows = reservations::list(&shared.database.pool, now, id).await.map_err(unavailable)?;
    let facts = rows.into_iter().map(|row| ReservationFacts {
        id: row.id,
        active: row.begins <= now && now < row.ends,
        begin_unix_seconds: seconds(row.begins),
        end_unix_seconds: seconds(row.ends),
        circuit: circuit_of(&row),
        client: row.client,
        class: row.class,
        source: row.source,
        destination: row.destination,
        rate_bps: row.rate_bps,
        path: row.route.0.into_iter().map(|(_, link)| link).collect(),
    });
    Ok(facts.collect())
}

fn circuit_of(row: &ListedReservation) -> Option<CircuitFacts> {
    let state = row.state?;
    Some(CircuitFacts {
        state: state.as_str().to_owned(),
        since_unix_seconds: seconds(row.since.unwrap_or_default()),
        reason: row.why.clone().filter(|why| !why.is_empty()),
        addresses: row.addresses.0.clone(),
        measured_bps: row.measured_bps.unwrap_or_default(),
        checked_unix_seconds: row.checked.map(seconds),
        verified: row.shows,
    })
}

/// Reservations that have not ended.
#[utoipa::path(get, path = "/api/v1/reservations", operation_id = "list_reservations", security((), ("token" = [])), responses(
    (status = 200, body = Reservations, description = "Reservations"), Refused,
    Unavailable))]
pub(super) async fn list(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<Reservations>, ProblemDetails> {
    QueryParams::new(given)?.none(PARAMETERS_PAGE)?;
    if !asking.who.is_client() {
        return Err(ProblemDetails::forbidden("the token needs the scope read or submit"));
    }
    let all = stored(&shared, None).await?.into_iter();
    let seen = all.filter(|one| one.class.as_ref().is_none_or(|class| asking.who.may_see(class)));
    Ok(Json(Reservations { reservations: seen.collect() }))
}

/// Ends a reservation now.
#[utoipa::path(delete, path = "/api/v1/reservations/{id}", operation_id = "cancel_reservation", security(("token" = [])),
    params(("id" = i64, Path, description = "Its number")), responses(
    (status = 200, body = ReservationFacts, description = "The reservation, cancelled"), Refused,
    Unavailable))]
pub(super) async fn cancel(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(id): Path<String>,
) -> Result<Json<ReservationFacts>, ProblemDetails> {
    let missing = || {
        let text = format!(
            "there is no reservation {id} that you may see: penstock reserve, or GET /api/v1/reservations, lists them"
        );
        ProblemDetails::not_found(text)
    };
    let number = number(&id).map_err(|_| missing())?;
    let one = stored(&shared, Some(number)).await?.into_iter().next().ok_or_else(missing)?;
    let class = one.class.clone().unwrap_or_default();
    if !asking.who.may_see(&class) {
        return Err(missing());
    }
    if !asking.who.may_change(&class) {
        shared.counters.refused();
        return Err(ProblemDetails::forbidden(format!(
            "the token needs the scope submit:{class} or operate"
        )));
    }
    let audit = Audit {
        who: asking.who.name,
        peer: asking.peer,
        what: "unreserve",
        object: format!("reservation {number}"),
        detail: String::new(),
    };
    let done = shared.writer.apply(move |cx| {
        let audit = audit.clone();
        Box::pin(async move { reserve::cancel(cx, number, audit).await })
    });
    match done.await? {
        true => Ok(Json(one)),
        false => Err(missing()),
    }
}
