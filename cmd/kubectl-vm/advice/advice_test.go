// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// apiFolder is where the API package is.
const apiFolder = "../../../apis/cloudnative/v1alpha1/"

// constants returns the constants of conditions.go whose names have a prefix, by value.
func constants(t *testing.T, prefix string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), apiFolder+"conditions.go", nil, 0)
	assert.NoError(t, err)
	all := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			t.Fatalf("%s is not a literal", spec.Names[0].Name)
		}
		value, err := strconv.Unquote(literal.Value)
		assert.NoError(t, err)
		all[value] = spec.Names[0].Name
		return true
	})
	return all
}

// TestEveryReasonHasAdvice checks that every reason of a VM has advice, and no other text has any. An
// event needs none if there is nothing to do about it.
func TestEveryReasonHasAdvice(t *testing.T) {
	for prefix, table := range map[string]map[string]Advice{"Reason": reasons, "Event": events} {
		known := constants(t, prefix)
		if len(known) < 10 {
			t.Fatalf("only %d constants %s* were found", len(known), prefix)
		}
		for reason, name := range known {
			if _, found := table[reason]; found || prefix == "Reason" {
				checkAdvice(t, name, reason, table)
			}
		}
		for reason := range table {
			if known[reason] == "" {
				t.Errorf("there is advice about %s%s, which the API package does not have", prefix, reason)
			}
		}
	}
}

var placeholder = regexp.MustCompile(`\{[^}]*\}?`)

func checkAdvice(t *testing.T, name, reason string, table map[string]Advice) {
	t.Helper()
	a, ok := table[reason]
	switch {
	case !ok:
		t.Errorf("%s (%s) lacks advice", name, reason)
		return
	case !strings.HasSuffix(a.Means, "."):
		t.Errorf("%s means %q, want a sentence", name, a.Means)
	case a.Need >= Attention && a.Do == "":
		t.Errorf("%s needs a person, and there is nothing to do", name)
	}
	for _, driver := range []string{"", docker, qemu, pod} {
		if left := placeholder.FindString(a.Steps(names(driver))); left != "" {
			t.Errorf("%s: %s is not replaced", name, left)
		}
	}
}

func names(driver string) Names {
	return Names{Program: "kubectl vm", Kubectl: "kubectl", VM: "web", Driver: driver}
}

func TestUnknownReason(t *testing.T) {
	if a, ok := For("OfALaterVersion"); ok {
		t.Errorf("there is advice about an unknown reason: %+v", a)
	}
}

func TestStepsNameTheVM(t *testing.T) {
	a, _ := For("ChangePending")
	if got := a.Steps(Names{Program: "drover vm", VM: "web"}); got != "drover vm restart web" {
		t.Errorf("got %q", got)
	}
	b, _ := For("ProbeFailing")
	if d, q := b.Steps(names(docker)), b.Steps(names(qemu)); d == q {
		t.Error("the driver makes no difference")
	}
}

// TestCrashesLeadToTheLog checks that what a server has printed is shown by this program, with every
// driver that keeps it, and not by one that needs the engine's host.
func TestCrashesLeadToTheLog(t *testing.T) {
	for _, reason := range []string{"Restarting", "Exited"} {
		a, _ := For(reason)
		for driver, want := range map[string]string{docker: "kubectl vm logs --previous web", qemu: "kubectl vm logs web", pod: "kubectl vm logs web"} {
			if got := a.Steps(names(driver)); !strings.Contains(got, want) || strings.Contains(got, "docker logs") {
				t.Errorf("%s with %s leads to %q, want %q in it", reason, driver, got, want)
			}
		}
	}
}
