// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/users"
)

// Evidence is the complete input of the oracle.
type Evidence struct {
	// Journal is the fake engine's, in its order.
	Journal []journal.Entry
	// Processes are all processes of replicas that ever ran.
	Processes []Process
	Faults    []Fault
	// Requested is what users requested, for all VirtualMachines that ever existed.
	Requested map[types.UID]users.Requested
	// Observations are reads of VirtualMachines whose server had been created.
	Observations []Observation
	// VMs and Servers are those that exist at the end.
	VMs     map[types.UID]*api.VirtualMachine
	Servers map[types.UID]*fake.Record
}

// Observation is a VirtualMachine as the API had it at some time.
type Observation = rules.Observation

// The rules are those of package rules.
type (
	// Process is a process of a replica.
	Process = rules.Process
	// Rule is a condition that must hold.
	Rule = rules.Rule
	// Violation is a breach of a rule.
	Violation = rules.Violation
)

// The names of rules where servers are machines.
const (
	RuleStartCount     = rules.O7
	RuleFinalizerFirst = rules.O2
)

func newViolation(rule Rule, uid types.UID, text string) Violation {
	return Violation{Rule: rule, UID: uid, Text: text}
}

// Judge returns the rules that were broken.
func Judge(e Evidence) []Violation {
	judged := rules.Evidence{Journal: e.Journal, Processes: e.Processes, Requested: e.Requested, Observations: e.Observations, VMs: e.VMs}
	for _, r := range e.Servers {
		judged.Servers = append(judged.Servers, rules.ServerOf(r, time.Now()))
	}
	return rules.Judge(judged)
}

func (e Evidence) checkFinalizers() []Violation {
	return rules.CheckFinalizers(e.Journal, e.Observations)
}
