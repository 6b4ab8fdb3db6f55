from headrace.engine import Traffic
from headrace.service.live_rates import LiveRates


def traffic(read: int, up: int) -> Traffic:
    volume = {"nvme_read": read, "nvme_write": read // 2}
    return Traffic(links={"nvme_read": read, "h2d": up}, volumes={"/mnt/nvme": volume})


def test_rates_are_of_the_time_between_two_looks() -> None:
    rates = LiveRates()
    assert rates.add(traffic(1000, 0), 10.0) == {}
    assert rates.add(traffic(5000, 600), 12.0) == {
        "rates": {"nvme_read": 2000, "h2d": 300},
        "volumes": {"/mnt/nvme": {"read_bytes_per_second": 2000, "write_bytes_per_second": 1000}},
    }
    assert rates.add(traffic(5000, 600), 13.0)["rates"] == {"nvme_read": 0, "h2d": 0}


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    rates = LiveRates()
    rates.add(traffic(1, 1), 5.0)
    assert rates.add(traffic(2, 2), 5.0) == {}
