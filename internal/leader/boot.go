// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootTime returns the time since the host was started, including time suspended.
// It never jumps.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME cannot be read: " + err.Error()) // cannot fail since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
