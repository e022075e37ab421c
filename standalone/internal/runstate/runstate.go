// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runstate writes and reads a file of the data dir in which a running `drover up` describes itself.
// Other commands read the file, also after the run has ended.
//
// Start with Recorder, which writes the file, and Read.
package runstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/standalone/internal/datadir"
)

// State is the content of the file.
type State struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	// EndedAt is when the process ended. It is zero while the process runs, and if it was
	// killed. Failure says why the process ended, if nobody asked it to.
	EndedAt time.Time `json:"endedAt,omitzero"`
	Failure string    `json:"failure,omitempty"`
	// Args are the flags that were set by the command line or the environment. Environment has
	// the EngineVariables that were set.
	Args        []string          `json:"args,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Drivers     []string          `json:"drivers,omitempty"`
	// Stopping is set once a stop was requested.
	Stopping bool `json:"stopping,omitempty"`
}

// EngineVariables are the environment variables that decide which engine is used.
var EngineVariables = []string{"DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION"}

// Read reads the file. It returns nil if the file does not exist, as at the beginning of the first start. It
// returns an error for a file that another user may have written, since its settings name programs to run.
func Read(path string) (*State, error) {
	content, info, err := datadir.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is the answer for no file.
	}
	if err != nil {
		return nil, err
	}
	const writable = 0o022
	if owner := datadir.OwnerOf(info); owner != 0 && owner != os.Geteuid() || info.Mode().Perm()&writable != 0 {
		return nil, fmt.Errorf("%s is not read: another user owns it, or may write to it", path)
	}
	s := &State{}
	if err := json.Unmarshal(content, s); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return s, nil
}

// Recorder writes the file whenever something changes.
type Recorder struct {
	clock clock.PassiveClock
	write func([]byte) error

	mu    sync.Mutex
	state State
}

// NewRecorder returns a recorder for a process that starts now. It ignores failed writes, since
// the file is only for information.
func NewRecorder(version string, c clock.PassiveClock, write func([]byte) error) *Recorder {
	return &Recorder{clock: c, write: write, state: State{Version: version, PID: os.Getpid(), StartedAt: c.Now()}}
}

// updateState changes the state and writes it.
func (r *Recorder) updateState(change func(s *State, now time.Time)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state, r.clock.Now())
	if content, err := json.MarshalIndent(r.state, "", "  "); err == nil {
		_ = r.write(append(content, '\n'))
	}
}

// Begin records the settings.
func (r *Recorder) Begin(flags *pflag.FlagSet, getenv func(string) string) {
	r.updateState(func(s *State, _ time.Time) {
		s.Args, s.Environment = changedFlags(flags), map[string]string{}
		for _, name := range EngineVariables {
			if value := getenv(name); value != "" {
				s.Environment[name] = value
			}
		}
	})
}

// changedFlags returns arguments that set the same flags again when they are parsed.
func changedFlags(flags *pflag.FlagSet) []string {
	var args []string
	flags.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

// Stopping records that a stop was requested.
func (r *Recorder) Stopping() {
	r.updateState(func(s *State, _ time.Time) { s.Stopping = true })
}

// SetDrivers records the drivers that run. The first driver is the default.
func (r *Recorder) SetDrivers(names []string) {
	r.updateState(func(s *State, _ time.Time) { s.Drivers = slices.Clone(names) })
}

// End records that the process ends, and why.
func (r *Recorder) End(cause error) {
	r.updateState(func(s *State, now time.Time) {
		s.EndedAt = now
		if cause != nil {
			s.Failure = cause.Error()
		}
	})
}
