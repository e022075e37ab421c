// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	for arg, want := range map[string]string{
		"web": "web", "vm/web": "web", "vms/web": "web", "virtualmachine/web": "web", "virtualmachines/web": "web",
		"virtualmachine.cloudnative.tw/web": "web", "virtualmachines.cloudnative.tw/web": "web", "VM/web": "web", "vm": "vm",
	} {
		if got, err := ParseName(arg); err != nil || got != want {
			t.Errorf("%q is %q and %v, want %q", arg, got, err, want)
		}
	}
	for _, arg := range []string{"", "pod/web", "vm/", "virtualmachine.kubevirt.io/web", "/web"} {
		if got, err := ParseName(arg); err == nil {
			t.Errorf("%q is the name %q", arg, got)
		}
	}
}

func TestSelection(t *testing.T) {
	tests := map[string]struct {
		selection Selection
		args      string
		want      string // of the error
	}{
		"names":             {args: "a vm/b a"},
		"all":               {selection: Selection{All: true}},
		"labels everywhere": {selection: Selection{Selector: "a=b", AllNamespaces: true}},
		"nothing":           {want: "no VM is named"},
		"both":              {selection: Selection{All: true}, args: "a", want: "not both"},
		"all and labels":    {selection: Selection{All: true, Selector: "a=b"}, want: "exclude"},
		"a name everywhere": {selection: Selection{AllNamespaces: true}, args: "a", want: "-A needs"},
		"something else":    {args: "pod/a", want: "not the name of a VM"},
	}
	for name, test := range tests {
		err := test.selection.ParseNames(strings.Fields(test.args))
		if fmt.Sprint(err) == "<nil>" && test.want == "" {
			continue
		}
		if err == nil || test.want == "" || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	s := Selection{}
	if err := s.ParseNames([]string{"a", "vm/b", "a"}); err != nil || strings.Join(s.Names, " ") != "a b" {
		t.Errorf("the names are %v and %v", s.Names, err)
	}
}

func TestForEachKeepsTheOrder(t *testing.T) {
	var all []*SelectedVM
	for i := range 100 {
		all = append(all, &SelectedVM{Name: fmt.Sprint(i)})
	}
	n := 0
	ForEach(all, func(one *SelectedVM) { one.Namespace = one.Name }, func(one *SelectedVM) {
		if one.Name != fmt.Sprint(n) || one.Namespace != one.Name {
			t.Fatalf("%s comes after %d", one.Name, n)
		}
		n++
	})
	if n != len(all) {
		t.Errorf("%d were seen", n)
	}
}
