// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"errors"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// Observed has the fields of the inventory's answer.
type Observed struct {
	Answer     string          `json:"answer"`
	Server     Server          `json:"server,omitzero"`
	Duplicates List            `json:"duplicates,omitzero"`
	EngineID   string          `json:"engineID,omitzero"`
	DownSince  time.Time       `json:"downSince,omitzero"`
	Cause      Optional[Error] `json:"cause,omitzero"`
	BackSince  time.Time       `json:"backSince,omitzero"`
	Fenced     bool            `json:"fenced,omitzero"`
	SettlesAt  time.Time       `json:"settlesAt,omitzero"`
}

// Server has fields of a server.
type Server struct {
	ID            string          `json:"id,omitzero"`
	Run           string          `json:"run,omitzero"`
	State         driver.State    `json:"state,omitzero"`
	Progress      string          `json:"progress,omitzero"`
	Note          string          `json:"note,omitzero"`
	Err           Optional[Error] `json:"error,omitzero"`
	Exit          Optional[Exit]  `json:"exit,omitzero"`
	StartedAt     time.Time       `json:"startedAt,omitzero"`
	CPUMilli      int64           `json:"cpuMilli,omitzero"`
	MemoryBytes   int64           `json:"memoryBytes,omitzero"`
	RootDiskBytes int64           `json:"rootDiskBytes,omitzero"`
	NeedsEnsure   bool            `json:"needsEnsure,omitzero"`
	HostLost      bool            `json:"hostLost,omitzero"`

	Disruption      string `json:"disruption,omitzero"`
	IsUnschedulable bool   `json:"isUnschedulable,omitzero"`
	IsLeaving       bool   `json:"isLeaving,omitzero"`
}

// Exit is how a run ended, without any output.
type Exit struct {
	Code   int       `json:"code"`
	Reason string    `json:"reason,omitzero"`
	At     time.Time `json:"at,omitzero"`

	StopRequested bool `json:"stopRequested,omitzero"`
}

// Error is an error of a driver: its text, which the status shows too, and what code tests it
// for.
type Error struct {
	Text   string `json:"text"`
	Kinds  List   `json:"kinds,omitzero"`
	Reason string `json:"reason,omitzero"`
}

// kinds are the sentinels of package driver by name.
var kinds = []struct {
	name string
	err  error
}{
	{"NotFound", driver.ErrNotFound},
	{"Invalid", driver.ErrInvalid},
	{"Unsupported", driver.ErrUnsupported},
	{"Retry", driver.ErrRetry},
	{"Exhausted", driver.ErrExhausted},
	{"Unavailable", driver.ErrUnavailable},
	{"Fenced", driver.ErrFenced},
	{"NotLeading", driver.ErrNotLeading},
	{"Deposed", driver.ErrDeposed},
	{"ConsoleTaken", driver.ErrConsoleTaken},
	{"CommandNotFound", driver.ErrCommandNotFound},
	{"CommandNotExecutable", driver.ErrCommandNotExecutable},
}

func errorOf(err error) (o Optional[Error]) {
	if err == nil {
		return o
	}
	var names []string
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			names = append(names, k.name)
		}
	}
	o.Set, o.Value = true, Error{Text: cutInput(err.Error()), Kinds: listOf(names), Reason: driver.ReasonOf(err)}
	return o
}

func (o Error) error() error {
	err := errors.New(o.Text)
	for _, name := range o.Kinds.Names() {
		for _, k := range kinds {
			if k.name == name {
				err = driver.Errorf(k.err, "%w", err)
			}
		}
	}
	if o.Reason != "" {
		err = driver.WithReason(o.Reason, err)
	}
	return err
}

func errorFrom(o Optional[Error]) error {
	if !o.Set {
		return nil
	}
	return o.Value.error()
}

// answers are the inventory's answers by name.
var answers = map[inventory.Answer]string{inventory.Unknown: "unknown", inventory.Gone: "gone", inventory.Present: "present"}

func answerFrom(name string) inventory.Answer {
	for answer, n := range answers {
		if n == name {
			return answer
		}
	}
	return inventory.Unknown
}

func (b clockBase) observed(o *inventory.Observation) Observed {
	return Observed{
		Answer: answers[o.Answer], Server: b.server(&o.Server), Duplicates: listOf(o.Duplicates), EngineID: o.EngineID,
		DownSince: b.at(o.DownSince), Cause: errorOf(o.Cause), BackSince: b.at(o.BackSince), Fenced: o.Fenced, SettlesAt: b.at(o.SettlesAt),
	}
}

func (b clockBase) server(s *driver.Server) Server {
	return Server{
		ID: s.ID, Run: s.Run, State: s.State, Progress: cutInput(s.Progress), Note: cutInput(s.Note), Err: errorOf(s.Err),
		Exit: optional(s.Exit, func(e driver.Exit) Exit {
			return Exit{Code: e.Code, Reason: e.Reason, At: b.at(e.At), StopRequested: e.StopRequested}
		}),
		StartedAt: b.at(s.StartedAt), CPUMilli: s.Applied.CPUMilli, MemoryBytes: s.Applied.MemoryBytes, RootDiskBytes: s.Applied.RootDiskBytes,
		NeedsEnsure: s.NeedsEnsure, HostLost: s.HostLost, Disruption: cutInput(s.Disruption), IsUnschedulable: s.IsUnschedulable, IsLeaving: s.IsLeaving,
	}
}

func (o *Observed) observation() inventory.Observation {
	return inventory.Observation{
		Answer: answerFrom(o.Answer), Server: o.Server.server(), Duplicates: o.Duplicates.Names(), EngineID: o.EngineID,
		DownSince: o.DownSince, Cause: errorFrom(o.Cause), BackSince: o.BackSince, Fenced: o.Fenced, SettlesAt: o.SettlesAt,
	}
}

func (s *Server) server() driver.Server {
	return driver.Server{
		ID: s.ID, Run: s.Run, State: s.State, Progress: s.Progress, Note: s.Note, Err: errorFrom(s.Err),
		Exit: pointer(s.Exit, func(e Exit) driver.Exit {
			return driver.Exit{Code: e.Code, Reason: e.Reason, At: e.At, StopRequested: e.StopRequested}
		}),
		StartedAt: s.StartedAt, Applied: driver.Resources{CPUMilli: s.CPUMilli, MemoryBytes: s.MemoryBytes, RootDiskBytes: s.RootDiskBytes},
		NeedsEnsure: s.NeedsEnsure, HostLost: s.HostLost, Disruption: s.Disruption, IsUnschedulable: s.IsUnschedulable, IsLeaving: s.IsLeaving,
	}
}
