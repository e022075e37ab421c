// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rules has the rules that Drover must keep, and checks them on plain data that tests gather:
// objects, servers, a driver's journal, users' requests, decisions, logs. It uses no client, no clock and
// no testing.T, so that the same checks serve real processes, virtual time and hand-made data.
//
// Start with Judge in evidence.go. Rules about a moment, such as OneLeader when a call begins, are checked by the
// code that sees that moment. That code reports a violation with Broken.
package rules

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Rule is a condition that must hold.
type Rule string

// The rules. Sentences explains them; reports and docs/faults.md use the codes.
const (
	ServerPresent   Rule = "O1"
	NoOrphans       Rule = "O2"
	OneServer       Rule = "O3"
	DeletionEnds    Rule = "O4"
	OneLeader       Rule = "O5"
	OthersUntouched Rule = "O6"
	AsRequested     Rule = "O7"
	QuietAtRest     Rule = "O8"
	GuestDataKept   Rule = "O9"
	Converges       Rule = "O10"
	StatusTrue      Rule = "O11"
	Confidential    Rule = "O12"
	NoGrowth        Rule = "O13"
	Reproducible    Rule = "O14"
)

// Sentences are the rules in words. docs/faults.md has the same.
var Sentences = map[Rule]string{
	ServerPresent:   "each VirtualMachine that should run has its server, as the last change left it; a server is created after the finalizer, which goes after the server",
	NoOrphans:       "no server without a VirtualMachine is left; at the moment of a crash, each server's VirtualMachine has the finalizer",
	OneServer:       "one UID never has two servers, and never gets a second one",
	DeletionEnds:    "nothing is Terminating for long once all is well",
	OneLeader:       "no change is accepted from an earlier leader after one of a later leader, and none begins without the Lease",
	OthersUntouched: "what is not Drover's is not touched: servers of another cluster, with the same names, on each engine",
	AsRequested:     "the end state, and how often servers were created, deleted, released and started, are as users requested, and those of a run without faults",
	QuietAtRest:     "at rest nothing but the Lease is written, and no status in which nothing has changed",
	GuestDataKept:   "what a guest has synced to its disks does not change or go back",
	Converges:       "everything converges, and no process ends by itself",
	StatusTrue:      "a status names the server that exists, and the state that it has; none is Ready before a server of its UID was created",
	Confidential:    "user-data from a Secret, the controller's token and the answers of a registry are in no log, event, status, command line, decision or record, neither as they are nor in base64",
	NoGrowth:        "a process that lives on does not need more and more",
	Reproducible:    "a recorded decision comes out the same when it is derived again",
}

// Violation is a breach of a rule. All fields but Rule and Text may be empty.
type Violation struct {
	// Case repeats the run that broke the rule.
	Case string
	Rule Rule
	// UID identifies the VirtualMachine that the violation is about.
	UID  types.UID
	Text string
	// History has the decisions of the controllers, in sentences.
	History string
}

// Broken returns a violation with only a rule and a text.
func Broken(rule Rule, format string, args ...any) Violation {
	return Violation{Rule: rule, Text: fmt.Sprintf(format, args...)}
}

// String returns the violation in one line, without the history.
func (v Violation) String() string {
	text := fmt.Sprintf("%s: %s", v.Rule, v.Text)
	if v.UID != "" {
		text = fmt.Sprintf("%s: %s: %s", v.Rule, v.UID, v.Text)
	}
	return strings.TrimPrefix(v.Case+": "+text, ": ")
}
