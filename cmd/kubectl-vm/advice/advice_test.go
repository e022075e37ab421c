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
		assert.Require(t, ok, "%s is not a literal", spec.Names[0].Name)
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
		assert.Require(t, len(known) >= 10, "only %d constants %s* were found", len(known), prefix)
		for reason, name := range known {
			if _, found := table[reason]; found || prefix == "Reason" {
				checkAdvice(t, name, reason, table)
			}
		}
		for reason := range table {
			assert.True(t, known[reason] != "", "there is advice about %s%s, which the API package does not have", prefix, reason)
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
		left := placeholder.FindString(a.Steps(names(driver)))
		assert.True(t, left == "", "%s: %s is not replaced", name, left)
	}
}

func names(driver string) Names {
	return Names{Program: "kubectl vm", Kubectl: "kubectl", VM: "web", Driver: driver}
}

func TestUnknownReason(t *testing.T) {
	a, ok := Find("OfALaterVersion")
	assert.True(t, !ok, "there is advice about an unknown reason: %+v", a)
}

func TestStepsNameTheVM(t *testing.T) {
	a, _ := Find("ChangePending")
	got := a.Steps(Names{Program: "drover vm", VM: "web"})
	assert.True(t, got == "drover vm restart web", "got %q", got)
	b, _ := Find("ProbeFailing")
	d, q := b.Steps(names(docker)), b.Steps(names(qemu))
	assert.True(t, d != q, "the driver makes no difference")
}

// TestCrashesLeadToTheLog checks that what a server has printed is shown by this program, with every
// driver that keeps it, and not by one that needs the engine's host.
func TestCrashesLeadToTheLog(t *testing.T) {
	for _, reason := range []string{"Restarting", "Exited"} {
		a, _ := Find(reason)
		for driver, want := range map[string]string{docker: "kubectl vm logs --previous web", qemu: "kubectl vm logs web", pod: "kubectl vm logs web"} {
			got := a.Steps(names(driver))
			assert.True(t, strings.Contains(got, want) && !strings.Contains(got, "docker logs"), "%s with %s leads to %q, want %q in it", reason, driver, got, want)
		}
	}
}
