// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/agent"
)

// TestInputs checks that the input that is kept has a bound for a namespace and one for all,
// and counts no longer once its command has ended.
func TestInputs(t *testing.T) {
	read := func(kept *inputs, namespace string) (*input, error) {
		in := &input{from: bytes.NewReader(make([]byte, agent.MaxInput)), namespace: namespace, kept: kept}
		content, err := in.readAll(t.Context(), clock.RealClock{})
		if err == nil && len(content) != agent.MaxInput {
			t.Errorf("%d bytes were read", len(content))
		}
		return in, err
	}
	for name, c := range map[string]struct {
		namespaces []string
		most       int
		says       string
	}{
		"a namespace": {[]string{"a"}, maxInputsOfNamespace, "namespace a "},
		"a host":      {[]string{"a", "b", "c", "d", "e", "f"}, maxInputs, "on this host"},
	} {
		t.Run(name, func(t *testing.T) {
			kept := &inputs{}
			var all []*input
			for len(all) < c.most/agent.MaxInput {
				in, err := read(kept, c.namespaces[len(all)%len(c.namespaces)])
				if err != nil {
					t.Fatalf("input %d: %v", len(all), err)
				}
				all = append(all, in)
			}
			next := c.namespaces[len(all)%len(c.namespaces)]
			refused, err := read(kept, next)
			if !errors.Is(err, driver.ErrRetry) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("one more is %v", err)
			}
			refused.release()
			all[0].release()
			in, err := read(kept, c.namespaces[0])
			if err != nil {
				t.Errorf("after an end: %v", err)
			}
			for _, in := range append(all[1:], in) {
				in.release()
			}
			if kept.total != 0 || len(kept.counts) != 0 {
				t.Errorf("%d bytes are counted for nobody: %v", kept.total, kept.counts)
			}
		})
	}
}

// TestInputEnds checks that input which does not end in time is given up, and that what is read
// later is not counted.
func TestInputEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &inputs{}
		typed, typing := io.Pipe()
		in := &input{from: typed, namespace: "a", kept: kept}
		go func() { _, _ = io.WriteString(typing, "x") }()
		_, err := in.readAll(t.Context(), clock.RealClock{})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "5m0s") {
			t.Errorf("got %v", err)
		}
		if kept.total != 1 {
			t.Errorf("%d bytes are kept", kept.total)
		}
		in.release()
		_, _ = io.WriteString(typing, "later")
		synctest.Wait()
		if kept.total != 0 || len(kept.counts) != 0 {
			t.Errorf("%d bytes are counted: %v", kept.total, kept.counts)
		}
	})
}
