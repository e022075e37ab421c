// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/policy"
)

// Decision is what policy.Decide returned.
type Decision struct {
	Action  Action    `json:"action"`
	Status  Intent    `json:"status"`
	WakeAt  time.Time `json:"wakeAt,omitzero"`
	NextTry time.Time `json:"nextTry,omitzero"`
}

// Action is a policy.Action.
type Action struct {
	// Step is wait, ensure, delete or finish.
	Step        string            `json:"step"`
	Operation   api.OperationType `json:"operation,omitzero"`
	Power       driver.Power      `json:"power,omitzero"`
	StopBy      time.Time         `json:"stopBy,omitzero"`
	EndRun      string            `json:"endRun,omitzero"`
	RecordFirst bool              `json:"recordFirst,omitzero"`
	BeginsStop  bool              `json:"beginsStop,omitzero"`
	FollowsUp   bool              `json:"followsUp,omitzero"`
	ShortRuns   int32             `json:"shortRuns,omitzero"`
	CrashedRun  string            `json:"crashedRun,omitzero"`
	Retain      bool              `json:"retain,omitzero"`
	AllDrivers  bool              `json:"allDrivers,omitzero"`
}

// Intent is a policy.StatusIntent.
type Intent struct {
	Unchanged      bool                       `json:"unchanged,omitzero"`
	Phase          api.Phase                  `json:"phase,omitzero"`
	Reason         string                     `json:"reason,omitzero"`
	Message        string                     `json:"message,omitzero"`
	Ready          bool                       `json:"ready,omitzero"`
	Stalled        bool                       `json:"stalled,omitzero"`
	Unobserved     bool                       `json:"unobserved,omitzero"`
	Blocked        bool                       `json:"blocked,omitzero"`
	Pending        List                       `json:"pending,omitzero"`
	Refused        Optional[api.RefusedField] `json:"refused,omitzero"`
	RestartHandled bool                       `json:"restartHandled,omitzero"`
	StoppedBySpec  bool                       `json:"stoppedBySpec,omitzero"`
}

// The steps by name.
const (
	stepWait   = "wait"
	stepEnsure = "ensure"
	stepDelete = "delete"
	stepFinish = "finish"
)

var steps = map[policy.Step]string{
	policy.StepNone: stepWait, policy.StepEnsure: stepEnsure, policy.StepDelete: stepDelete, policy.StepFinish: stepFinish,
}

func (b clockBase) decision(d *policy.Decision) Decision {
	a := &d.Action
	return Decision{
		Action: Action{
			Step: steps[a.Step], Operation: a.Operation, Power: a.Power, StopBy: b.at(a.StopBy), EndRun: a.EndRun, RecordFirst: a.RecordFirst,
			BeginsStop: a.BeginsStop, FollowsUp: a.FollowsUp, ShortRuns: a.ShortRuns, CrashedRun: a.CrashedRun, Retain: a.Retain, AllDrivers: a.AllDrivers,
		},
		Status: intent(&d.Status), WakeAt: b.at(d.WakeAt), NextTry: b.at(d.NextTry),
	}
}

func intent(s *policy.StatusIntent) Intent {
	return Intent{
		Unchanged: s.Unchanged, Phase: s.Phase, Reason: s.Reason, Message: cutText(s.Message), Ready: s.Ready, Stalled: s.Stalled,
		Unobserved: s.Unobserved, Blocked: s.Blocked, Pending: listOf(s.Pending),
		Refused: optional(s.Refused, func(f api.RefusedField) api.RefusedField {
			return api.RefusedField{Field: f.Field, Reason: f.Reason, Message: cutText(f.Message)}
		}),
		RestartHandled: s.RestartHandled, StoppedBySpec: s.StoppedBySpec,
	}
}
