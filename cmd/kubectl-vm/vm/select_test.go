// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestParseName(t *testing.T) {
	for arg, want := range map[string]string{
		"web": "web", "vm/web": "web", "vms/web": "web", "virtualmachine/web": "web", "virtualmachines/web": "web",
		"virtualmachine.cloudnative.tw/web": "web", "virtualmachines.cloudnative.tw/web": "web", "VM/web": "web", "vm": "vm",
	} {
		got, err := ParseName(arg)
		assert.True(t, err == nil && got == want, "%q is %q and %v, want %q", arg, got, err, want)
	}
	for _, arg := range []string{"", "pod/web", "vm/", "virtualmachine.kubevirt.io/web", "/web"} {
		got, err := ParseName(arg)
		assert.True(t, err != nil, "%q is the name %q", arg, got)
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
		assert.True(t, err != nil && test.want != "" && strings.Contains(err.Error(), test.want), "%s: %v, want %q", name, err, test.want)
	}
	s := Selection{}
	err := s.ParseNames([]string{"a", "vm/b", "a"})
	assert.True(t, err == nil && strings.Join(s.Names, " ") == "a b", "the names are %v and %v", s.Names, err)
}

func TestForEachKeepsTheOrder(t *testing.T) {
	var all []*SelectedVM
	for i := range 100 {
		all = append(all, &SelectedVM{Name: fmt.Sprint(i)})
	}
	n := 0
	ForEach(all, func(one *SelectedVM) { one.Namespace = one.Name }, func(one *SelectedVM) {
		assert.Require(t, one.Name == fmt.Sprint(n) && one.Namespace == one.Name, "%s comes after %d", one.Name, n)
		n++
	})
	assert.Equal(t, "were seen", n, len(all))
}
