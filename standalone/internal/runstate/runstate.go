// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runstate is what a `drover up` says of itself, in a file of the data dir: for
// commands that look at it from another process, and at its last run when it has ended.
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
	"cloudnative.tw/drover/standalone/internal/supervisor"
)

// State is the content of the file.
type State struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	// EndedAt is zero while it runs, and if it was killed. Failure is why it ended, if that
	// was not asked for.
	EndedAt time.Time `json:"endedAt,omitzero"`
	Failure string    `json:"failure,omitempty"`
	URL     string    `json:"url,omitempty"`
	// Args are the flags that were given or set by the environment, and Environment has the
	// further variables that decide which engine is used.
	Args        []string          `json:"args,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Drivers     []string          `json:"drivers,omitempty"`
	// Epoch is that of the leader, 0 while it does not lead.
	Epoch      uint64      `json:"epoch,omitempty"`
	Components []Component `json:"components,omitempty"`
}

// Component is a part of the program.
type Component struct {
	Name  string    `json:"name"`
	State string    `json:"state"`
	Since time.Time `json:"since"`
}

// States of a component.
const (
	StateWaiting    = "waiting" // for those before it
	StateStarting   = "starting"
	StateReady      = "ready"
	StateStopping   = "stopping"
	StateStopped    = "stopped"
	StateLeftBehind = "left behind"
)

// EngineVariables are the variables that decide which engine is used.
var EngineVariables = []string{"DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION"}

// Read reads the file. It returns nil if there is none, as at the beginning of a first start. It refuses
// a file that another user may have written, since its settings name programs to run.
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

// Recorder writes the file whenever something changes. It implements supervisor.Observer.
type Recorder struct {
	clock clock.PassiveClock
	write func([]byte) error

	mu    sync.Mutex
	state State
}

// NewRecorder returns a recorder of a process that starts now. A write that fails is
// ignored: the file is only for information.
func NewRecorder(version string, c clock.PassiveClock, write func([]byte) error) *Recorder {
	return &Recorder{clock: c, write: write, state: State{Version: version, PID: os.Getpid(), StartedAt: c.Now()}}
}

// update changes the state and writes it.
func (r *Recorder) update(change func(s *State, now time.Time)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state, r.clock.Now())
	if content, err := json.MarshalIndent(r.state, "", "  "); err == nil {
		_ = r.write(append(content, '\n'))
	}
}

// Begin records the settings and the components before they start.
func (r *Recorder) Begin(url string, flags *pflag.FlagSet, getenv func(string) string, parts []supervisor.Component) {
	r.update(func(s *State, now time.Time) {
		s.URL, s.Args, s.Environment = url, changedFlags(flags), map[string]string{}
		for _, name := range EngineVariables {
			if value := getenv(name); value != "" {
				s.Environment[name] = value
			}
		}
		for _, p := range parts {
			s.Components = append(s.Components, Component{Name: p.Name, State: StateWaiting, Since: now})
		}
		startNext(s, 0, now)
	})
}

// changedFlags returns the flags that were set, so that parsing them gives the same.
func changedFlags(flags *pflag.FlagSet) []string {
	var args []string
	flags.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, is := f.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

// startNext records that the component at an index starts, since each waits for the one
// before it.
func startNext(s *State, i int, now time.Time) {
	if i < len(s.Components) && s.Components[i].State == StateWaiting {
		s.Components[i].State, s.Components[i].Since = StateStarting, now
	}
}

func (s *State) find(name string) int {
	return slices.IndexFunc(s.Components, func(c Component) bool { return c.Name == name })
}

func (r *Recorder) setState(name, state string) {
	r.update(func(s *State, now time.Time) {
		i := s.find(name)
		if i < 0 {
			return
		}
		s.Components[i].State, s.Components[i].Since = state, now
		if state == StateReady {
			startNext(s, i+1, now)
		}
	})
}

// Ready implements supervisor.Observer.
func (r *Recorder) Ready(name string, _ time.Duration) { r.setState(name, StateReady) }

// Stopping implements supervisor.Observer.
func (r *Recorder) Stopping() {
	r.update(func(s *State, now time.Time) {
		for i := range s.Components {
			s.Components[i].State, s.Components[i].Since = StateStopping, now
		}
	})
}

// Stopped implements supervisor.Observer.
func (r *Recorder) Stopped(name string, _ time.Duration) { r.setState(name, StateStopped) }

// LeftBehind implements supervisor.Observer.
func (r *Recorder) LeftBehind(name string, _ time.Duration) { r.setState(name, StateLeftBehind) }

// SetDrivers records the drivers that run; the first is the default.
func (r *Recorder) SetDrivers(names []string) {
	r.update(func(s *State, _ time.Time) { s.Drivers = slices.Clone(names) })
}

// SetEpoch records the epoch under which this process leads.
func (r *Recorder) SetEpoch(epoch uint64) {
	r.update(func(s *State, _ time.Time) { s.Epoch = epoch })
}

// End records that the process ends, and why.
func (r *Recorder) End(cause error) {
	r.update(func(s *State, now time.Time) {
		s.EndedAt, s.Epoch = now, 0
		if cause != nil {
			s.Failure = cause.Error()
		}
		for i := range s.Components {
			if s.Components[i].State != StateLeftBehind {
				s.Components[i].State = StateStopped
			}
		}
	})
}
