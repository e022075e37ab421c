// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import "time"

// pollPeriod is how exact a measurement by Poll is.
const pollPeriod = 25 * time.Millisecond

// Poll calls check until it succeeds, and returns how long that took, or check's last error
// if it takes too long. It checks as often at the end of a long wait as at its beginning.
func Poll(within time.Duration, check func() error) (took time.Duration, err error) {
	for begin := time.Now(); ; time.Sleep(pollPeriod) {
		err = check()
		if took = time.Since(begin); err == nil || took > within {
			return took, err
		}
	}
}
