// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervised

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine/proc"
)

// stateSize is the size of the file. Its room on the disk is taken once, and it is written in place: a guest needs its
// next supervisor on a full disk too.
const stateSize = 1 << 10

// state is which supervisor was started last.
type state struct {
	// Token must be known to connect.
	Token string `json:"token"`
	// Program is the digest of the program.
	Program string `json:"program"`
	// PID and StartTicks identify the process: see proc.StartTicks. They are 0 while it is being started.
	PID        int   `json:"pid,omitempty"`
	StartTicks int64 `json:"startTicks,omitempty"`
	// Boot is the boot of the host in which that is so: two boots can be alike.
	Boot string `json:"boot"`
	// Sum is a checksum of the other fields, by which a reader recognizes a state that is being written. Earlier versions
	// of Drover, which replaced the whole file, wrote none.
	Sum string `json:"sum,omitempty"`
}

// checksum returns the value that Sum should have.
func (s state) checksum() string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d %s", s.Token, s.Program, s.PID, s.StartTicks, s.Boot)))
}

// isAlive reports whether the process runs, which one that its parent has not waited for does not.
func (s state) isAlive() bool {
	if s.Boot != proc.Boot() {
		return false
	}
	handle, err := unix.PidfdOpen(s.PID, 0)
	if err != nil { // also for 0
		return false
	}
	defer func() { _ = unix.Close(handle) }()
	ticks, err := proc.StartTicks(s.PID)
	if err != nil || ticks != s.StartTicks {
		return false
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
	return err != nil || n == 0
}

// stateFile is the file of a machine that has the state of its supervisor.
type stateFile struct{ path string }

func (file stateFile) readState() (s state, err error) {
	content, _, err := atomicfile.Read(file.path, stateSize)
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err == nil && s.Sum != "" && s.Sum != s.checksum() {
		err = errors.New("it is being written")
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", file.path, err)
	}
	return s, nil
}

// settleTries is how often a state is read that cannot be read as a whole.
const settleTries = 5

// readSettled is readState for a caller without the lock of the supervisor. A state that cannot be parsed may be in the
// middle of a write, and is read again after a pause. pause reports whether to go on.
func (file stateFile) readSettled(pause func() bool) (s state, err error) {
	for range settleTries {
		if s, err = file.readState(); err == nil || errors.Is(err, fs.ErrNotExist) || !pause() {
			break
		}
	}
	return s, err
}

// openFile opens the state, and takes its room on the disk if it has not got that yet.
func (file stateFile) openFile() (*os.File, error) {
	f, err := os.OpenFile(file.path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < stateSize {
		_, err = f.WriteAt(bytes.Repeat([]byte("\n"), int(stateSize-info.Size())), info.Size())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writeState writes the state in place, by one write. The caller has the lock of the supervisor.
func writeState(f *os.File, s state) error {
	s.Sum = s.checksum()
	content, err := json.Marshal(s)
	if err == nil && len(content) > stateSize {
		err = fmt.Errorf("the state of a supervisor has %d bytes, and may have %d", len(content), stateSize)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append(content, bytes.Repeat([]byte("\n"), stateSize-len(content))...), 0)
	return err
}
