// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package converter

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/machine/confine"
)

const (
	// memoryLimit is how much memory the program strives to stay below, and maxMemory how much
	// it can have. An image of as many files as rootfs takes needs less.
	memoryLimit = "1GiB"
	maxMemory   = 2 << 30
	// gcPercent is the default of Go, which the program does not have where it follows a machine.
	gcPercent = 100
	// noHandle stands for a missing descriptor: the program signals no process.
	noHandle = -1
)

// Main is the program: it converts one image, prints the result as JSON, and returns its exit code.
func Main(arguments []string) int {
	if err := runMain(arguments); err != nil {
		fmt.Fprintln(os.Stderr, "drover-machine:", err)
		return 1
	}
	return 0
}

func runMain(arguments []string) error {
	if len(arguments) != 0 {
		return fmt.Errorf("%s takes no arguments", Command)
	}
	if err := confineSelf(); err != nil {
		return err
	}
	result := rootfs.Convert(os.Stdin, rootfs.SentOutput{To: os.NewFile(outputFD, "the root")})
	return json.NewEncoder(os.Stdout).Encode(result)
}

// Rights are the rights of the converter.
var Rights confine.Rights

// confineSelf takes from this process all that it does not need, before it reads anything.
func confineSelf() error {
	debug.SetGCPercent(gcPercent)
	unix.CloseOnExec(outputFD)
	_ = unix.Close(programFD)
	signal.Ignore(unix.SIGXFSZ, unix.SIGPIPE) // the calls fail instead
	for resource, limit := range map[int]uint64{unix.RLIMIT_FSIZE: 0, unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limiting resource %d: %w", resource, err)
		}
	}
	return confine.DenyStarts(noHandle, Rights)
}
