// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/internal/controller/decisions"
)

// lastDecisions is how many decisions are shown of a test that fails.
const lastDecisions = 30

// readDecisions returns what the controller has decided about the VirtualMachines of a
// namespace; empty means all. A file that was full is beside the present one.
func (e *specEnvironment) readDecisions(ns string) (all []decisions.Record, err error) {
	for _, path := range []string{e.decisions + ".1", e.decisions} {
		file, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found, err := decisions.Read(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		for _, r := range found.Records {
			if ns == "" || r.Input.VM.Namespace == ns {
				all = append(all, r)
			}
		}
	}
	return all, nil
}

// showDecisions shows the last ones of a namespace at the end of a test, if it has failed.
func showDecisions(t *testing.T, ns string) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		all, err := environment.readDecisions(ns)
		t.Logf("the last decisions: %v\n%s", err, decisions.Format(all[max(0, len(all)-lastDecisions):]...))
	})
}

// replayDecisions returns an error if a decision comes out otherwise when it is derived again.
func (e *specEnvironment) replayDecisions() error {
	all, err := e.readDecisions("")
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no decision was recorded")
	}
	for n := range all {
		differences, err := all[n].Replay()
		if err != nil {
			return fmt.Errorf("derive decision %d about %s again: %w", all[n].Sequence, all[n].Key(), err)
		}
		if len(differences) > 0 {
			return fmt.Errorf("decision %d about %s differs when it is derived again: %+v", all[n].Sequence, all[n].Key(), differences)
		}
	}
	fmt.Printf("%d recorded decisions were derived again\n", len(all))
	return nil
}
