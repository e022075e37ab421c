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

// stateSize is the size of the file. The file is allocated once, and then written in place, so that the next supervisor
// can be started even on a full disk.
const stateSize = 1 << 10

// state describes the supervisor that was started last.
type state struct {
	// Token is the secret that clients of the supervisor send.
	Token string `json:"token"`
	// Program is the digest of drover-machine.
	Program string `json:"program"`
	// PID and StartTicks identify the process: see proc.StartTicks. They are 0 while the process is being started.
	PID        int   `json:"pid,omitempty"`
	StartTicks int64 `json:"startTicks,omitempty"`
	// Boot is the boot of the host to which PID and StartTicks belong. Another boot may give the same numbers.
	Boot string `json:"boot"`
	// Sum is a checksum of the other fields. A reader detects by it a file that is being written. Earlier versions of
	// Drover wrote no checksum, and replaced the whole file.
	Sum string `json:"sum,omitempty"`
}

// checksum returns the value that Sum should have.
func (s state) checksum() string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d %s", s.Token, s.Program, s.PID, s.StartTicks, s.Boot)))
}

// isAlive reports whether the process runs. A zombie does not.
func (s state) isAlive() bool {
	if s.Boot != proc.Boot() {
		return false
	}
	handle, err := unix.PidfdOpen(s.PID, 0)
	if err != nil { // also for a PID of 0
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

// stateFile is the file with the state of a machine's supervisor.
type stateFile struct{ path string }

func (file stateFile) readState() (s state, err error) {
	content, _, err := atomicfile.Read(file.path, stateSize)
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err == nil && s.Sum != "" && s.Sum != s.checksum() {
		err = errors.New("the checksum is wrong: the file may be being written")
	}
	if err != nil {
		return s, fmt.Errorf("reading the state of the supervisor in %s: %w", file.path, err)
	}
	return s, nil
}

// readTries is how often readUnlocked tries to read the state.
const readTries = 5

// readUnlocked is readState for a caller without the lock of the supervisor. The state may be being written, so it is
// read again after a pause if it is invalid. pause reports whether to go on.
func (file stateFile) readUnlocked(pause func() bool) (s state, err error) {
	for range readTries {
		if s, err = file.readState(); err == nil || errors.Is(err, fs.ErrNotExist) || !pause() {
			break
		}
	}
	return s, err
}

// openFile opens the state file, and fills a new one to its full size.
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

// writeState writes the state in place, in one write. The caller has the lock of the supervisor.
func writeState(f *os.File, s state) error {
	s.Sum = s.checksum()
	content, err := json.Marshal(s)
	if err == nil && len(content) > stateSize {
		err = fmt.Errorf("the state of a supervisor has %d bytes, and may have at most %d", len(content), stateSize)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append(content, bytes.Repeat([]byte("\n"), stateSize-len(content))...), 0)
	return err
}
