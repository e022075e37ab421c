// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rules has the rules that Drover keeps, O1 to O14, and checks of them over plain data, which tests
// gather: objects, servers, a driver's journal, what users requested, decisions, texts. It knows no client, no
// clock and no test, so that processes, virtual time and hand-made evidence are judged alike.
//
// Start with Judge in evidence.go. Rules that hold at a moment, such as O5 when a call begins, are checked where
// that moment is, and are reported by Broken.
package rules

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Rule is a condition that must hold.
type Rule string

// The rules; Sentences says what they are.
const (
	O1  Rule = "O1"
	O2  Rule = "O2"
	O3  Rule = "O3"
	O4  Rule = "O4"
	O5  Rule = "O5"
	O6  Rule = "O6"
	O7  Rule = "O7"
	O8  Rule = "O8"
	O9  Rule = "O9"
	O10 Rule = "O10"
	O11 Rule = "O11"
	O12 Rule = "O12"
	O13 Rule = "O13"
	O14 Rule = "O14"
)

// Sentences are the rules in words. docs/faults.md has the same.
var Sentences = map[Rule]string{
	O1:  "each VirtualMachine that should run has its server, as the last change left it; a server is created after the finalizer, which goes after the server",
	O2:  "no server without a VirtualMachine is left; at the moment of a crash, each server's VirtualMachine has the finalizer",
	O3:  "one UID never has two servers, and never gets a second one",
	O4:  "nothing is Terminating for long once all is well",
	O5:  "no change is accepted from an earlier leader after one of a later leader, and none begins without the Lease",
	O6:  "what is not Drover's is not touched: servers of another cluster, with the same names, on each engine",
	O7:  "the end state, and how often servers were created, deleted, released and started, are as users requested, and those of a run without faults",
	O8:  "at rest nothing but the Lease is written, and no status in which nothing has changed",
	O9:  "what a guest has synced to its disks does not change or go back",
	O10: "everything converges, and no process ends by itself",
	O11: "a status names the server that exists, and the state that it has; none is Ready before a server of its UID was created",
	O12: "user-data from a Secret, the controller's token and the answers of a registry are in no log, event, status, command line, decision or record, neither as they are nor in base64",
	O13: "a process that lives on does not need more and more",
	O14: "a recorded decision comes out the same when it is derived again",
}

// Violation is a breach of a rule. All but the rule and the text may be empty.
type Violation struct {
	// Case repeats the run that broke the rule.
	Case string
	Rule Rule
	// UID identifies the VirtualMachine that it is about.
	UID  types.UID
	Text string
	// History has the decisions of the controllers, in sentences.
	History string
}

// Broken returns a violation that has a text alone.
func Broken(rule Rule, format string, args ...any) Violation {
	return Violation{Rule: rule, Text: fmt.Sprintf(format, args...)}
}

// String returns it in one line, without the history.
func (v Violation) String() string {
	text := fmt.Sprintf("%s: %s", v.Rule, v.Text)
	if v.UID != "" {
		text = fmt.Sprintf("%s: %s: %s", v.Rule, v.UID, v.Text)
	}
	return strings.TrimPrefix(v.Case+": "+text, ": ")
}
