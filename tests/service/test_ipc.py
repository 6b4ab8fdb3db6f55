import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.service import ipc
from headrace.service.channel import Channel, channel_pair

MESSAGES: list[ipc.Message] = [
    ipc.Run(job_id="ftjob-1", spec_path="/s", job_dir="/j", state_name="s", after_seq=7),
    ipc.Stop(reason="pause", job_id="ftjob-1"),
    ipc.Stop(reason="shutdown"),
    ipc.Hello(pid=5, rss_bytes=1),
    ipc.Heartbeat(progress=3),
    ipc.Telemetry(job_id="ftjob-1", data={"loss": 1.5}),
    ipc.Finished(job_id="ftjob-1"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.op)
def test_every_message_survives_the_wire(message: ipc.Message) -> None:
    assert ipc.decode(ipc.encode(message)) == message


@given(st.binary(max_size=60))
def test_noise_is_refused_by_value_error_only(noise: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of the worker protocol"):
        ipc.decode(noise)


def test_packets_stay_whole_and_in_order() -> None:
    api, worker = channel_pair()
    with api, worker:
        for message in MESSAGES:
            api.send(ipc.encode(message))
        channel = Channel(worker.detach())
        assert [channel.receive() for _ in MESSAGES] == MESSAGES
        channel.close()


def test_send_never_waits_for_a_peer_that_does_not_read() -> None:
    api, worker = channel_pair()
    with api:
        channel = Channel(worker.detach())
        results = [channel.send(ipc.Heartbeat(progress=i)) for i in range(20_000)]
        channel.close()
    assert results[0] and not results[-1]


def test_peer_gone_reads_as_none_and_sends_as_false() -> None:
    api, worker = channel_pair()
    api.close()
    channel = Channel(worker.detach())
    assert channel.receive() is None
    assert channel.send(ipc.Heartbeat(progress=1)) is False
    channel.close()
