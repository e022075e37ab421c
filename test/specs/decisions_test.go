// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/test/framework/rules"
)

// readDecisions returns all that the controller has decided. A file that was full is beside the
// present one.
func (e *specEnvironment) readDecisions() ([]decisions.Record, error) {
	return rules.ReadDecisions(e.decisions+".1", e.decisions)
}

// showDecisions shows the last ones of a namespace at the end of a test, if it has failed.
func showDecisions(t *testing.T, ns string) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		all, err := environment.readDecisions()
		all = slices.DeleteFunc(all, func(r decisions.Record) bool { return r.Input.VM.Namespace != ns })
		t.Logf("the last decisions: %v\n%s", err, rules.FormatDecisions(all))
	})
}

// replayDecisions returns an error if a decision comes out otherwise when it is derived again.
func (e *specEnvironment) replayDecisions() error {
	all, err := e.readDecisions()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no decision was recorded")
	}
	if broken := rules.CheckDecisions(all); len(broken) > 0 {
		return fmt.Errorf("%v", broken)
	}
	fmt.Printf("%d recorded decisions were derived again\n", len(all))
	return nil
}
