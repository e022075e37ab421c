// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

func TestReadList(t *testing.T) {
	const items = `[{"metadata":{"name":"a","namespace":"n","generation":3,"managedFields":[{"manager":"x"}]},"spec":{"resource":{"cpu":2,"memory":"4G"},"ports":[]},"status":{"phase":"Active"}},{"metadata":{"name":"b"}}]`
	lists := []string{
		`{"kind":"VirtualMachineList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":` + items + `}`,
		`{"items":` + items + `,"metadata":{"continue":""}}`,
	}
	for _, text := range lists {
		vms, err := readList(strings.NewReader(text))
		if err != nil || len(vms) != 2 {
			t.Fatalf("%s: %d VMs and %v", text, len(vms), err)
		}
		vm := vms[0]
		if vm.Name != "a" || vm.Namespace != "n" || vm.Generation != 3 || vm.Status.Phase != api.PhaseActive || sizeText(&vm, api.ResourceMemory) != "4G" {
			t.Errorf("got %+v", vm)
		}
	}
	if vms, err := readList(strings.NewReader(`{"items":[]}`)); err != nil || len(vms) != 0 {
		t.Errorf("an empty list is %v and %v", vms, err)
	}
	for _, text := range []string{"", "[]", "{}", `{"items":null}`, `{"items":{}}`, lists[0][:len(lists[0])/2], lists[0][:len(lists[0])-2], "404 page not found"} {
		if vms, err := readList(strings.NewReader(text)); err == nil {
			t.Errorf("%q is a list of %d", text, len(vms))
		}
	}
}

func TestParseName(t *testing.T) {
	for arg, want := range map[string]string{
		"web": "web", "vm/web": "web", "vms/web": "web", "virtualmachine/web": "web", "virtualmachines/web": "web",
		"virtualmachine.cloudnative.tw/web": "web", "virtualmachines.cloudnative.tw/web": "web", "VM/web": "web", "vm": "vm",
	} {
		if got, err := parseName(arg); err != nil || got != want {
			t.Errorf("%q is %q and %v, want %q", arg, got, err, want)
		}
	}
	for _, arg := range []string{"", "pod/web", "vm/", "virtualmachine.kubevirt.io/web", "/web"} {
		if got, err := parseName(arg); err == nil {
			t.Errorf("%q is the name %q", arg, got)
		}
	}
}

func TestSelection(t *testing.T) {
	tests := map[string]struct {
		selection selection
		args      string
		want      string // of the error
	}{
		"names":             {args: "a vm/b a"},
		"all":               {selection: selection{all: true}},
		"labels everywhere": {selection: selection{selector: "a=b", allNamespaces: true}},
		"nothing":           {want: "no VM is named"},
		"both":              {selection: selection{all: true}, args: "a", want: "not both"},
		"all and labels":    {selection: selection{all: true, selector: "a=b"}, want: "exclude"},
		"a name everywhere": {selection: selection{allNamespaces: true}, args: "a", want: "-A needs"},
		"something else":    {args: "pod/a", want: "not the name of a VM"},
	}
	for name, test := range tests {
		err := test.selection.parseNames(strings.Fields(test.args))
		if fmt.Sprint(err) == "<nil>" && test.want == "" {
			continue
		}
		if err == nil || test.want == "" || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	s := selection{}
	if err := s.parseNames([]string{"a", "vm/b", "a"}); err != nil || strings.Join(s.names, " ") != "a b" {
		t.Errorf("the names are %v and %v", s.names, err)
	}
}

func TestForEachKeepsTheOrder(t *testing.T) {
	var all []*selected
	for i := range 100 {
		all = append(all, &selected{name: fmt.Sprint(i)})
	}
	n := 0
	forEach(all, func(one *selected) { one.namespace = one.name }, func(one *selected) {
		if one.name != fmt.Sprint(n) || one.namespace != one.name {
			t.Fatalf("%s comes after %d", one.name, n)
		}
		n++
	})
	if n != len(all) {
		t.Errorf("%d were seen", n)
	}
}

func TestScopeOfAWait(t *testing.T) {
	vm := func(namespace, name string) *awaited {
		one := &awaited{vm: &api.VirtualMachine{}}
		one.vm.Namespace, one.vm.Name, one.vm.UID = namespace, name, types.UID(namespace+name)
		return one
	}
	tests := map[string]struct {
		vms                 []*awaited
		namespace, selector string
	}{
		"one":                   {[]*awaited{vm("a", "x")}, "a", "metadata.name=x"},
		"several":               {[]*awaited{vm("a", "x"), vm("a", "y")}, "a", ""},
		"of several namespaces": {[]*awaited{vm("a", "x"), vm("b", "x")}, "", ""},
	}
	for name, test := range tests {
		w := &waiter{open: map[types.UID]*awaited{}}
		for _, one := range test.vms {
			w.open[one.vm.UID] = one
		}
		if namespace, opts := w.scope(); namespace != test.namespace || opts.FieldSelector != test.selector {
			t.Errorf("%s: %q and %q", name, namespace, opts.FieldSelector)
		}
	}
}

// TestReadServersAgain checks that looks share a connection, and that a failed one ends nothing.
func TestReadServersAgain(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	var connection atomic.Value // of the last look, by the port of its other end
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isConfig := strings.Contains(r.URL.Path, "/configmaps/"); !isConfig {
			connection.Store(r.RemoteAddr)
			if failing.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
		_, _ = io.WriteString(w, "{}\n")
	}))
	defer server.Close()
	o, _ := newOptions()
	o.Config.APIServer = &server.URL
	s := &serversOptions{Options: o}
	checkShared := func(when string) {
		// A host that starves for 50 ms makes net/http drop a connection.
		assert.Eventually(t, when+" looks share a connection", func(t testing.TB) error {
			before := connection.Load()
			_, err := s.readServers(t.Context())
			if err == nil && connection.Load() != before {
				err = errors.New("each fails")
			}
			return err
		})
	}
	checkShared("before a failure")
	failing.Store(true)
	if _, err := s.readServers(t.Context()); !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("got %v, want that the service is unavailable", err)
	}
	failing.Store(false)
	checkShared("after it")
}
