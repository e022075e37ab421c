// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/test/framework/rules"
)

// decisionsLog has all decisions of the controller, as JSON.
type decisionsLog struct {
	mu   sync.Mutex
	text []byte
	err  error
}

// add adds a record, or an update of a record.
func (l *decisionsLog) add(line any) {
	text, err := json.Marshal(line)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.err = err
		return
	}
	l.text = append(append(l.text, text...), '\n')
}

// read returns all decisions.
func (l *decisionsLog) read() ([]decisions.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	f, err := rules.ParseDecisions(l.text)
	return f.Records, err
}

// showDecisions shows the last decisions of a namespace at the end of a failed test.
func showDecisions(t *testing.T, ns string) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		all, err := environment.decisions.read()
		all = slices.DeleteFunc(all, func(r decisions.Record) bool { return r.Input.VM.Namespace != ns })
		t.Logf("the last decisions: %v\n%s", err, rules.FormatDecisions(all))
	})
}

// check derives each decision again, and returns an error if one differs from its record.
func (l *decisionsLog) check() error {
	all, err := l.read()
	if err != nil {
		return err
	}
	if broken := rules.CheckDecisions(all); len(broken) > 0 {
		return fmt.Errorf("%v", broken)
	}
	fmt.Printf("%d recorded decisions were derived again\n", len(all))
	return nil
}
