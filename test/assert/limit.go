// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package assert

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// A wait may take limit, and up to starvedLimit as long as the host starves: then processes of this
// host wait for a CPU most of the time.
const (
	limit        = 3 * time.Minute
	starvedLimit = 10 * time.Minute
	// starvedShare is the part of a minute, in percent, in which some process waited for a CPU.
	starvedShare = 50
)

// pressureFile is documented in the kernel's Documentation/accounting/psi.rst.
const pressureFile = "/proc/pressure/cpu"

// isOver reports whether a wait that has taken that long has failed.
func isOver(waited time.Duration) bool {
	return waited > starvedLimit || waited > limit && !isStarved(pressureFile)
}

// isStarved reports whether the host starves. A host that does not say counts as starved.
func isStarved(path string) bool {
	content, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	var avg10, avg60 float64
	if n, err := fmt.Fscanf(strings.NewReader(string(content)), "some avg10=%f avg60=%f", &avg10, &avg60); err != nil || n != 2 {
		return true
	}
	return max(avg10, avg60) >= starvedShare
}

// WaitsEnv names a file to which each wait of a second and longer adds a line: how long it took, as
// a part of limit, the test and the condition. make flakes prints the longest.
const WaitsEnv = "DROVER_TEST_WAITS"

const shortestRecorded = time.Second

var recording sync.Mutex

func record(test, condition string, took time.Duration) {
	path := os.Getenv(WaitsEnv)
	if path == "" || took < shortestRecorded {
		return
	}
	recording.Lock()
	defer recording.Unlock()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // the figures are a help, not a result
	}
	defer func() { _ = f.Close() }()
	_, _ = fmt.Fprintf(f, "%06.3f\t%s\t%s\n", took.Seconds()/limit.Seconds(), test, strings.ReplaceAll(condition, "\n", " "))
}
