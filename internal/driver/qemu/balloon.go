// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"math"
	"time"
)

const (
	// balloonEvery is how often QEMU asks the guest for its memory statistics.
	balloonEvery = 5 * time.Second
	// balloonStale is the age from which on statistics mean that the guest has no driver any
	// more, as after a reset into another system.
	balloonStale = 6 * balloonEvery
	balloonPath  = "/machine/peripheral/balloon"
)

// balloon is a device by which the guest reports its memory. It takes none from the
// guest.
var balloon = object{
	"driver": "virtio-balloon-pci", "id": "balloon", "guest-stats-polling-interval": int(balloonEvery / time.Second),
}

// balloonStats are what the guest reported last. A number that it did not report has all
// bits set.
type balloonStats struct {
	LastUpdate int64 `json:"last-update"` // in seconds since 1970, 0 for never
	Stats      struct {
		Total     uint64 `json:"stat-total-memory"`
		Free      uint64 `json:"stat-free-memory"`
		Available uint64 `json:"stat-available-memory"`
	} `json:"stats"`
}

// guestMemory returns what the guest uses of its memory by its own account: all that its
// programs could not have. A guest without the driver does not report it.
func (s *server) guestMemory(ctx context.Context, now time.Time) (used int64, told bool) {
	if s.silence != nil {
		return 0, false
	}
	var stats balloonStats
	if err := s.command(ctx, "qom-get", object{"path": balloonPath, "property": "guest-stats"}, &stats); err != nil {
		return 0, false // a machine that was started without the device
	}
	// A paused guest reports nothing new.
	if now.Sub(time.Unix(stats.LastUpdate, 0)) > balloonStale && !s.isPaused() {
		return 0, false
	}
	return stats.used()
}

func (b balloonStats) used() (used int64, told bool) {
	const untold = math.MaxUint64
	rest := b.Stats.Available
	if rest == untold { // Linux before 4.6
		rest = b.Stats.Free
	}
	if b.LastUpdate == 0 || b.Stats.Total == untold || rest > b.Stats.Total {
		return 0, false
	}
	return int64(b.Stats.Total - rest), true //nolint:gosec // less than a machine's memory
}
