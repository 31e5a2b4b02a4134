"""Violations planted as raw bytes: each flips the verdict, with its rule, topic, partition and offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_log import EPOCH_A, EPOCH_B, Plant, RawLog, complete_log, f4, grant, i4, mark, place, role, row, span, tensors, weights_sha256
from safetensors.numpy import save

from infra.audit.weights import weights_digest

CASES: list[Any] = []


def planted(rule: str, topic: str, partition: int, offset: int, says: str = "") -> Any:
    """Register a plant: the violation that it must cause, alone or with others that follow from it, and a part of its text."""

    def register(plant: Plant) -> Plant:
        CASES.append(pytest.param(plant, (rule, topic, partition, offset), says, id=f"{rule}-{plant.__name__}"))
        return plant

    return register


def file_of(log: RawLog, offset: int) -> Path:
    return Path(log.at("training", 0, offset)["files"][0]["uri"].removeprefix("file://"))


def first_node(log: RawLog) -> dict[str, Any]:
    """Node 0 of both copies of session 10's Trajectory: the same map."""
    node: dict[str, Any] = log.at("trajectories", 0, 0)["nodes"][0]
    return node


# R1


@planted("R1", "sessions", 0, 70)
def claim_of_no_grant(log: RawLog) -> None:
    log.at("sessions", 0, 70)["epoch"] = 35


@planted("R1", "sessions", 0, 70, "epoch 35 is no Grant")
def claim_of_no_grant_where_nothing_was_compacted_yet(log: RawLog) -> None:
    log.put_fields(("grants", 0, 40), grant(0, "b", "y"))
    log.at("sessions", 0, 70)["epoch"] = 35


@planted("R1", "sessions", 0, 70)
def claim_of_another_partitions_grant(log: RawLog) -> None:
    log.at("sessions", 0, 70)["epoch"] = 10


@planted("R1", "sessions", 0, 70)
def claim_by_another_node(log: RawLog) -> None:
    log.at("sessions", 0, 70)["node"] = "c"


@planted("R1", "sessions", 0, 70)
def claim_by_a_restarted_incarnation_without_a_new_grant(log: RawLog) -> None:
    log.at("sessions", 0, 70)["incarnation"] = "z"


@planted("R1", "sessions", 0, 70)
def claim_of_a_revoke(log: RawLog) -> None:
    log.records["grants", 0, EPOCH_B].fields = grant(0, "", "")


@planted("R1", "sessions", 0, 240)
def one_epoch_claimed_by_two(log: RawLog) -> None:
    log.session(240, "Claim", epoch=EPOCH_B, node="b", incarnation="other")


@planted("R1", "sessions", 0, 65)
def span_before_its_own_claim(log: RawLog) -> None:
    log.session(65, "Span", **span(10, 30, EPOCH_B, 2, [12]))


@planted("R1", "sessions", 0, 95)
def span_of_an_epoch_that_nobody_claimed(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 30, 17, 3, [13]))


# R2


@planted("R2", "sessions", 0, 90)
def start_beyond_the_accepted_tokens(log: RawLog) -> None:
    log.at("sessions", 0, 90)["start"] = 3


@planted("R2", "sessions", 0, 95)
def other_tokens_at_an_accepted_start(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 30, EPOCH_B, 2, [77]))


@planted("R2", "sessions", 0, 95)
def accepted_tokens_at_other_boundaries(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 30, EPOCH_B, 0, [10]))


@planted("R2", "sessions", 0, 95)
def repeat_that_also_goes_on(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 30, EPOCH_B, 2, [12, 13]))


@planted("R2", "sessions", 0, 95)
def repeat_with_other_logprobs(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 30, EPOCH_B, 2, [12]) | {"logprobs": f4(-3.0)})


@planted("R2", "sessions", 0, 95)
def repeat_with_another_version(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 30, EPOCH_B, 2, [12], version=1))


@planted("R2", "sessions", 0, 110)
def more_tokens_than_allowed(log: RawLog) -> None:
    log.at("sessions", 0, 50)["sampling"] = {"max_tokens": 3}


@planted("R2", "sessions", 0, 120)
def base_of_another_session(log: RawLog) -> None:
    log.at("sessions", 0, 120)["base"] = 50


@planted("R2", "sessions", 0, 120)
def base_longer_than_what_was_accepted(log: RawLog) -> None:
    log.at("sessions", 0, 120)["base_length"] = 8


# R3


@planted("R3", "sessions", 0, 165)
def request_of_a_session_that_never_opened(log: RawLog) -> None:
    log.session(165, "Request", session=15, nonce=b"q", tokens=i4(1), sampling={"max_tokens": 1})


@planted("R3", "sessions", 0, 95)
def span_of_a_request_that_was_never_made(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 31, EPOCH_B, 0, [1]))


@planted("R3", "sessions", 0, 95)
def span_of_another_sessions_request(log: RawLog) -> None:
    log.session(95, "Span", **span(20, 30, EPOCH_B, 3, [13]))


@planted("R3", "sessions", 0, 115)
def idle_close_while_a_request_runs(log: RawLog) -> None:
    log.session(105, "Request", session=20, nonce=b"q", tokens=i4(1), sampling={"max_tokens": 1})
    log.session(115, "Close", session=20, idle=True, seen=110)


@planted("R3", "sessions", 0, 105)
def owner_goes_on_after_its_own_closing_span(log: RawLog) -> None:
    log.session(105, "Span", **span(10, 30, EPOCH_B, 4, [14]))


# R4


@planted("R4", "sessions", 0, 90)
def one_logprob_too_many(log: RawLog) -> None:
    log.at("sessions", 0, 90)["logprobs"] = f4(-0.1, -0.2)


@planted("R4", "sessions", 0, 90)
def a_logprob_that_is_not_a_number(log: RawLog) -> None:
    log.at("sessions", 0, 90)["logprobs"] = f4(float("nan"))


@planted("R4", "sessions", 0, 90)
def an_array_that_ends_inside_a_value(log: RawLog) -> None:
    log.at("sessions", 0, 90)["tokens"] = b"\x01\x00\x00"


@planted("R4", "sessions", 0, 95)
def a_span_that_says_nothing(log: RawLog) -> None:
    log.session(95, "Span", **span(10, 30, EPOCH_B, 3, []))


@planted("R4", "sessions", 0, 95)
def bytes_that_are_no_msgpack(log: RawLog) -> None:
    log.session(95, "Span")
    log.records["sessions", 0, 95].value = b"\xc1corrupt"


@planted("R4", "sessions", 0, 95)
def an_unknown_type(log: RawLog) -> None:
    log.session(95, "Merge", session=10)


@planted("R4", "sessions", 0, 90)
def an_unknown_major(log: RawLog) -> None:
    log.records["sessions", 0, 90].schema = b"2.0"


@planted("R4", "sessions", 0, 90)
def a_header_that_names_another_type(log: RawLog) -> None:
    log.records["sessions", 0, 90].type_header = b"Cancel"


@planted("R4", "sessions", 0, 90)
def a_field_that_is_missing(log: RawLog) -> None:
    del log.at("sessions", 0, 90)["version"]


@planted("R4", "trajectories", 0, 10)
def a_mask_shorter_than_its_tokens(log: RawLog) -> None:
    log.at("trajectories", 0, 10)["nodes"][0]["mask"] = bytes(6)


@planted("R4", "scores", 0, 0)
def a_score_that_is_infinite(log: RawLog) -> None:
    log.at("scores", 0, 0)["value"] = float("inf")


@planted("R4", "training", 0, 0)
def a_tombstone_where_records_are_kept(log: RawLog) -> None:
    log.records["training", 0, 0].value = b""


# R5


@planted("R5", "sessions", 0, 71)
def position_with_the_epoch_of_now(log: RawLog) -> None:
    log.commits["rollout"][0] = (71, "epoch=0;")


@planted("R5", "sessions", 0, 70)
def position_with_the_epoch_of_a_claim_not_yet_read(log: RawLog) -> None:
    log.commits["rollout"][0] = (70, "epoch=30;")


@planted("R5", "sessions", 0, 251)
def position_without_an_epoch(log: RawLog) -> None:
    log.commits["assembler"][0] = (251, "")


@planted("R5", "sessions", 0, 271)
def position_above_an_open_session(log: RawLog) -> None:
    log.session(260, "Open", nonce=b"o1", check="ffffff")
    log.session(270, "Request", session=260, nonce=b"o2", tokens=b"", sampling={"max_tokens": 1})
    log.commits["rollout"][0] = (271, "epoch=30;")


@planted("R5", "sessions", 0, 251)
def position_of_the_assembler_above_a_session_without_trajectory(log: RawLog) -> None:
    del log.records["trajectories", 0, 40]


@planted("R5", "sessions", 1, 52)
def position_beyond_the_end(log: RawLog) -> None:
    log.commits["rollout"][1] = (52, "epoch=10;")


# R6: trajectories


@planted("R6", "sessions", 0, 230)
def an_ended_session_without_trajectory(log: RawLog) -> None:
    del log.records["trajectories", 0, 40]


@planted("R6", "sessions", 0, 150)
def a_trajectory_out_of_close_order(log: RawLog) -> None:
    del log.records["trajectories", 0, 0]


@planted("R6", "trajectories", 0, 5)
def a_trajectory_of_a_session_that_is_open(log: RawLog) -> None:
    log.session(260, "Open", nonce=b"o1", check="ffffff")
    log.put("trajectories", 0, 5, "Trajectory", session=260, close=155)


@planted("R6", "trajectories", 0, 0)
def a_token_that_was_not_sampled(log: RawLog) -> None:
    first_node(log)["tokens"] = i4(5, 6, 7, 10, 11, 99, 13)


@planted("R6", "trajectories", 0, 20)
def a_logprob_that_was_not_recorded(log: RawLog) -> None:
    first_node(log)["logprobs"] = f4(0, 0, 0, -0.10, -0.11, -0.12, -0.14)


@planted("R6", "trajectories", 1, 0)
def an_old_token_labelled_new(log: RawLog) -> None:
    log.at("trajectories", 1, 0)["nodes"][0]["versions"] = i4(-1, -1, 0, 1, 1)


@planted("R6", "trajectories", 0, 0)
def a_cancelled_request_with_mask(log: RawLog) -> None:
    log.at("trajectories", 0, 0)["nodes"][1]["mask"] = bytes([0, 1, 1])


@planted("R6", "trajectories", 0, 0)
def a_node_under_another_parent_length(log: RawLog) -> None:
    log.at("trajectories", 0, 0)["nodes"][1]["parent_length"] = 6


@planted("R6", "trajectories", 0, 0)
def a_request_left_out(log: RawLog) -> None:
    log.at("trajectories", 0, 0)["nodes"].pop()


@planted("R6", "trajectories", 0, 10)
def a_member_that_its_open_does_not_say(log: RawLog) -> None:
    log.at("trajectories", 0, 10)["member"] = 2


@planted("R6", "trajectories", 0, 10)
def a_reward_that_its_close_does_not_say(log: RawLog) -> None:
    log.at("trajectories", 0, 10)["reward"] = 0.9


@planted("R6", "scores", 0, 20)
def a_score_of_no_trajectory(log: RawLog) -> None:
    log.at("scores", 0, 20)["trajectory"] = 31


@planted("R6", "scores", 0, 10)
def a_score_of_another_session(log: RawLog) -> None:
    log.at("scores", 0, 10)["session"] = 10


@planted("R6", "trajectories", 0, 40, "close is 235")
def a_close_that_is_no_close(log: RawLog) -> None:
    log.at("trajectories", 0, 40)["close"] = 235


@planted("R6", "scores", 0, 20)
def a_score_that_takes_an_evaluation_for_training(log: RawLog) -> None:
    del log.at("scores", 0, 20)["purpose"]


# R6: training


@planted("R6", "training", 0, 30)
def a_session_in_two_steps(log: RawLog) -> None:
    log.at("training", 0, 30)["plan"]["places"].append(place(0, 0, 10))


@planted("R6", "training", 0, 30)
def a_session_dropped_and_trained(log: RawLog) -> None:
    log.at("training", 0, 20)["drops"].append({"place": place(1, 0, 10), "reason": "too old"})


@planted("R6", "training", 0, 10, "is eval")
def an_evaluation_that_is_trained(log: RawLog) -> None:
    log.at("training", 0, 10)["plan"]["places"].append(place(0, 30, 180))


@planted("R6", "training", 0, 10)
def a_duplicate_trajectory_that_is_trained(log: RawLog) -> None:
    log.at("training", 0, 10)["plan"]["places"][0]["offset"] = 20


@planted("R6", "training", 0, 10)
def a_token_in_two_rows(log: RawLog) -> None:
    plan = log.at("training", 0, 10)["plan"]
    plan["rows"].append(row(0, [0], [5], (4, 5)))
    plan["micro_batches"].append([2])
    plan["mini_batches"].append([2])


@planted("R6", "training", 0, 10)
def a_token_whose_mask_is_0(log: RawLog) -> None:
    log.at("training", 0, 10)["plan"]["rows"][0]["train_from"] = [2]


@planted("R6", "training", 0, 10)
def a_position_beyond_the_row(log: RawLog) -> None:
    log.at("training", 0, 10)["plan"]["rows"][0]["train_to"] = [8]


@planted("R6", "training", 0, 10, "it begins at 7")
def a_path_that_skips_tokens_of_the_parent(log: RawLog) -> None:
    log.at("training", 0, 10)["plan"]["rows"][0] |= {"nodes": [0, 1], "stops": [6, 1], "train_to": [6]}


@planted("R6", "training", 0, 10)
def a_row_in_two_micro_batches(log: RawLog) -> None:
    log.at("training", 0, 10)["plan"]["micro_batches"][1].append(0)


@planted("R6", "training", 0, 30)
def trained_tokens_miscounted(log: RawLog) -> None:
    log.at("training", 0, 30)["trained_tokens"] = 4


@planted("R6", "training", 0, 30)
def staleness_understated(log: RawLog) -> None:
    log.at("training", 0, 30)["staleness"] = 0


@planted("R6", "training", 0, 10)
def groups_that_are_not_those_of_the_places(log: RawLog) -> None:
    log.at("training", 0, 10)["groups_trained"] = [0, 5]


@planted("R6", "training", 0, 30)
def a_group_trained_after_it_was_dropped(log: RawLog) -> None:
    log.at("training", 0, 20)["groups"].append(3)


@planted("R6", "training", 0, 30)
def a_member_trained_twice(log: RawLog) -> None:
    for where in (("sessions", 1, 10), ("trajectories", 1, 0)):
        log.at(*where)["group"] = 0


@planted("R6", "training", 0, 30)
def a_step_number_left_out(log: RawLog) -> None:
    log.at("training", 0, 30)["step"] = 3


@planted("R6", "training", 0, 10)
def a_watermark_that_passes_an_undecided_trajectory(log: RawLog) -> None:
    log.at("training", 0, 10)["consumed"]["watermarks"] = [mark(0, 41, 230, 30)]


@planted("R6", "training", 0, 10)
def a_watermark_that_forgets_a_decided_trajectory(log: RawLog) -> None:
    log.at("training", 0, 10)["consumed"]["watermarks"] = [mark(0, 10, 150, 0)]


@planted("R6", "training", 0, 10)
def a_watermark_with_a_lower_close(log: RawLog) -> None:
    log.at("training", 0, 10)["consumed"]["watermarks"] = [mark(0, 40, 160, 30)]


@planted("R6", "training", 0, 30)
def a_watermark_that_goes_back(log: RawLog) -> None:
    log.at("training", 0, 30)["consumed"]["watermarks"][0] = mark(0, 40, 210, 30, [40])


@planted("R6", "training", 0, 20)
def a_score_watermark_that_passes_an_undecided_trajectory(log: RawLog) -> None:
    log.at("training", 0, 20)["consumed"]["watermarks"].append(mark(1, 0, -1, 1))


@planted("R6", "training", 0, 10)
def a_group_that_consumed_does_not_know(log: RawLog) -> None:
    log.at("training", 0, 10)["consumed"]["groups_below"] = 0


@planted("R6", "training", 0, 20)
def a_group_said_to_be_decided_that_is_not(log: RawLog) -> None:
    log.at("training", 0, 20)["consumed"]["groups_below"] = 4


@planted("R6", "training", 0, 30)
def a_tasks_watermark_that_goes_back(log: RawLog) -> None:
    log.at("training", 0, 30)["consumed"]["tasks"] = {0: 10, 1: 30, 2: 40, 3: 50}


@planted("R6", "training", 0, 10, "row 0: trains positions 4 to 7")
def a_position_in_two_ranges_of_a_row(log: RawLog) -> None:
    log.at("training", 0, 10)["plan"]["rows"][0] |= {"train_from": [3, 4], "train_to": [5, 7]}


@planted("R6", "training", 0, 30, "trains tokens of version 1, starts from 0")
def tokens_of_weights_that_the_trainer_had_not_made(log: RawLog) -> None:
    log.at("training", 0, 30)["version"] = 0


@planted("R6", "training", 0, 30, "trajectories end at 41")
def a_watermark_beyond_the_end(log: RawLog) -> None:
    log.at("training", 0, 30)["consumed"]["watermarks"][0] = mark(0, 42, 230, 30)


# R8


@planted("R8", "training", 0, 1, "the first version is 5")
def a_first_version_that_is_not_0(log: RawLog) -> None:
    log.at("training", 0, 1)["version"] = 5


@planted("R8", "training", 0, 11, "step 2 published 2")
def a_version_under_another_step(log: RawLog) -> None:
    log.at("training", 0, 11)["step"] = 2


@planted("R8", "sessions", 1, 40)
def a_span_of_a_version_that_nobody_announced(log: RawLog) -> None:
    log.at("sessions", 1, 40).update(version=9)


@planted("R8", "sessions", 0, 100)
def a_version_that_goes_back_under_one_epoch(log: RawLog) -> None:
    log.at("sessions", 0, 90)["version"] = 1


@planted("R8", "training", 0, 31)
def a_version_used_again(log: RawLog) -> None:
    log.at("training", 0, 31)["version"] = 1


@planted("R8", "training", 0, 31)
def a_version_of_no_step(log: RawLog) -> None:
    log.at("training", 0, 31)["step"] = 7


@planted("R8", "training", 0, 30)
def a_step_whose_version_is_not_announced(log: RawLog) -> None:
    del log.records["training", 0, 31]


@planted("R8", "training", 0, 30)
def a_step_that_starts_from_an_old_version(log: RawLog) -> None:
    log.at("training", 0, 30)["version"] = 0


@planted("R8", "training", 0, 31)
def a_version_with_another_digest_than_its_step(log: RawLog) -> None:
    log.at("training", 0, 30)["weights_sha256"] = "0" * 64


@planted("R8", "training", 0, 31, "is said to be made again, but step 2 published it")
def a_version_of_its_step_that_says_it_was_made_again(log: RawLog) -> None:
    log.at("training", 0, 31)["again_from"] = 1


@planted("R8", "training", 0, 32, "was made again from step 2")
def a_version_made_again_from_nothing_before_it(log: RawLog) -> None:
    log.put_fields(("training", 0, 32), {**log.at("training", 0, 31), "version": 3, "again_from": 2})


@planted("R8", "training", 0, 31, "lets go of files below 1, the one before below 2")
def files_that_were_let_go_before(log: RawLog) -> None:
    log.at("training", 0, 11)["files_from"] = 2
    log.at("training", 0, 31)["files_from"] = 1


@planted("R8", "training", 0, 31, "lets go of files below 3")
def a_version_that_lets_go_of_its_own_files(log: RawLog) -> None:
    log.at("training", 0, 31)["files_from"] = 3


@planted("R8", "training", 0, 1)
def the_file_of_version_0_that_is_gone(log: RawLog) -> None:
    log.at("training", 0, 31)["files_from"] = 2
    file_of(log, 1).unlink()


@planted("digest", "training", 0, 11)
def a_changed_file_that_may_be_gone(log: RawLog) -> None:
    log.at("training", 0, 31)["files_from"] = 2
    file_of(log, 11).write_bytes(b"something else")


@planted("R8", "training", 0, 11)
def a_weight_file_that_is_gone(log: RawLog) -> None:
    file_of(log, 11).unlink()


@planted("digest", "training", 0, 11)
def a_weight_file_with_one_byte_flipped(log: RawLog) -> None:
    content = bytearray(file_of(log, 11).read_bytes())
    content[-1] ^= 1
    file_of(log, 11).write_bytes(content)


@planted("digest", "training", 0, 11)
def a_weight_file_cut_short(log: RawLog) -> None:
    file_of(log, 11).write_bytes(file_of(log, 11).read_bytes()[:-4])


@planted("digest", "training", 0, 31)
def files_that_hold_other_weights_than_announced(log: RawLog) -> None:
    log.at("training", 0, 31)["files"] = log.at("training", 0, 11)["files"]


# cas


@planted("cas", "training", 0, 20)
def a_record_that_was_not_written_by_cas(log: RawLog) -> None:
    log.records["training", 0, 20].nonce = b""


@planted("cas", "training", 0, 20)
def a_write_committed_again(log: RawLog) -> None:
    log.records["training", 0, 20].nonce = b"1" * 16


@planted("cas", "tasks", 3, 40)
def a_task_number_left_out(log: RawLog) -> None:
    log.at("tasks", 3, 40)["number"] = 5


@planted("cas", "tasks", 0, 10)
def a_member_that_is_two_tasks(log: RawLog) -> None:
    log.at("tasks", 0, 10)["member"] = 0


# Roles


@planted("roles", "grants", 0, 32, "without sleep")
def a_node_that_turns_without_sleep(log: RawLog) -> None:
    log.put_fields(("grants", 0, 31), role("b", "rollout"))
    log.put_fields(("grants", 0, 32), role("b", "train"))


@planted("roles", "grants", 0, 32, "b turns to rollout after train, asleep, at 31")
def a_node_that_sleeps_on_its_way_to_the_other_role(log: RawLog) -> None:
    log.put_fields(("grants", 0, 31), role("b", "train", asleep=True))
    log.put_fields(("grants", 0, 32), role("b", "rollout"))


@planted("roles", "grants", 0, EPOCH_B, "granted to b, whose last Role is train, awake, at 29")
def a_grant_to_a_node_that_trains(log: RawLog) -> None:
    log.put_fields(("grants", 0, 28), role("b", "train", asleep=True))
    log.put_fields(("grants", 0, 29), role("b", "train"))


@planted("roles", "grants", 0, EPOCH_B, "whose last Role is rollout, asleep, at 29")
def a_grant_to_a_node_that_sleeps(log: RawLog) -> None:
    log.put_fields(("grants", 0, 29), role("b", "rollout", asleep=True))



@pytest.mark.parametrize(("plant", "expected", "says"), CASES)
def test_a_planted_violation_is_found_where_it_stands(
    plant: Plant, expected: tuple[str, str, int, int], says: str, tmp_path: Path
) -> None:
    log = complete_log(tmp_path)
    plant(log)
    verdict = log.audit()
    assert not verdict.audit_ok
    assert [violation for violation in verdict.violations if violation[:4] == expected and says in violation.text]


def test_a_whole_turn_of_roles_is_no_violation(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    turn = [role("b", "train", asleep=True), role("b", "train"), role("b", "rollout", asleep=True), role("b", "rollout")]
    for offset, fields in enumerate([*turn, grant(1, "b", "y")], start=31):
        log.put_fields(("grants", 0, offset), fields)
    verdict = log.audit()
    assert verdict.violations == []
    assert verdict.checked["roles"] == 4 + 4  # the log has three Grants of its own


def test_what_stood_before_compaction_is_not_asked_for(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.put_fields(("grants", 0, 31), role("b", "rollout"))
    assert log.audit().violations == []


def harmless_repeats() -> Iterator[tuple[int, str, dict[str, Any]]]:
    """What zombies, races and resends write into a correct log."""
    yield 95, "Span", span(10, 30, EPOCH_B, 2, [12])
    yield 95, "Span", span(10, 30, EPOCH_A, 2, [77, 78])
    yield 105, "Span", span(10, 30, EPOCH_B, 3, [13], finish="stop")
    yield 125, "Request", {"session": 10, "nonce": b"n5", "tokens": i4(8), "base": 30, "base_length": 7, "sampling": {"max_tokens": 6}}
    yield 145, "Cancel", {"session": 10, "request": 120}
    yield 155, "Close", {"session": 10, "nonce": b"n6", "reward": 0.5}
    yield 155, "Request", {"session": 10, "nonce": b"late", "tokens": i4(1), "sampling": {"max_tokens": 1}}
    yield 105, "Close", {"session": 20, "idle": True, "seen": 60}
    yield 75, "Claim", {"epoch": EPOCH_A, "node": "a", "incarnation": "x"}


@pytest.mark.parametrize(("offset", "type_", "fields"), list(harmless_repeats()))
def test_zombies_races_and_resends_are_no_violation(offset: int, type_: str, fields: dict[str, Any], tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    if type_ == "Close" and fields.get("idle"):
        log.session(62, "Request", session=20, nonce=b"late", tokens=i4(1), sampling={"max_tokens": 1})
        log.session(64, "Cancel", session=20, request=62)
        first = log.at("trajectories", 0, 10)["nodes"]
        first.append({"request": 62, "prompt": 1, "tokens": i4(1), "mask": b"\0", "logprobs": f4(0), "versions": i4(-1),
                      "sampling": {"max_tokens": 1}, "end": "cancelled"})
    log.put_fields(("sessions", 0, offset), {"type": type_, **fields})
    verdict = log.audit()
    assert verdict.violations == []
    assert sum(verdict.figures.ignored.values()) == 3


def test_after_an_unknown_type_nothing_of_the_partition_counts(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    an_unknown_type(log)
    assert log.audit().figures.tokens == 2 + 2 + 1 + 3  # the last three are partition 1's


def test_a_resumed_request_that_starts_elsewhere_is_told(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    start_beyond_the_accepted_tokens(log)
    figures = log.audit().figures
    assert (figures.resumed_at_accepted_length, figures.resumed_requests) == (False, 1)


def test_a_step_beyond_the_staleness_bound_is_a_violation(tmp_path: Path) -> None:
    (violation,) = complete_log(tmp_path).audit(staleness_bound=0).violations
    assert violation == ("R6", "training", 0, 30, "staleness 1, the bound is 0")


def test_a_position_at_the_open_of_an_open_session_is_true(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.session(260, "Open", nonce=b"o1", check="ffffff")
    log.commits["rollout"][0] = log.commits["assembler"][0] = (260, "epoch=30;")
    assert log.audit().violations == []


def test_the_digest_of_several_files_is_that_of_all_tensors_by_name(tmp_path: Path) -> None:
    parts = [save({name: tensor}) for name, tensor in sorted(tensors(1).items(), reverse=True)]
    assert weights_digest(parts) == weights_sha256(1)
