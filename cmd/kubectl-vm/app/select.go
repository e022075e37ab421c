// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// selection says which VMs a verb is about: those named, or with --all or -l.
type selection struct {
	names         []string
	selector      string
	all           bool
	allNamespaces bool
}

func (s *selection) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.selector, "selector", "l", "", "the VMs with these labels, for example app=web")
	cmd.Flags().BoolVar(&s.all, "all", false, "all VMs of the namespace")
	cmd.Flags().BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "with --all or -l: those of all namespaces")
}

// nameOf returns the name of a VM as kubectl prints it.
func (s *selection) nameOf(vm *api.VirtualMachine) string {
	if s.allNamespaces {
		return vmName(vm.Name) + " in namespace " + vm.Namespace
	}
	return vmName(vm.Name)
}

// parseNames takes the names from the arguments.
func (s *selection) parseNames(args []string) error {
	for _, arg := range args {
		name, err := parseName(arg)
		if err != nil {
			return err
		}
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
	}
	several := s.all || s.selector != ""
	switch {
	case len(s.names) > 0 && several:
		return errors.New("name the VMs or select them with --all or -l, not both")
	case len(s.names) == 0 && !several:
		return errors.New("no VM is named: give NAME..., or --all or -l")
	case s.all && s.selector != "":
		return errors.New("--all and -l exclude each other")
	case s.allNamespaces && !several:
		return errors.New("-A needs --all or -l: a name is looked up in one namespace, see -n")
	}
	return nil
}

// parseName returns the name of a VM. It may be given as list -o name prints it.
func parseName(arg string) (string, error) {
	kind, name, qualified := strings.Cut(arg, "/")
	if !qualified {
		name = arg
	}
	kind = strings.TrimSuffix(strings.ToLower(kind), "."+api.GroupName)
	if qualified && !slices.Contains([]string{"vm", "vms", "virtualmachine", resourceVMs}, kind) {
		return "", fmt.Errorf("%q is not the name of a VM: use NAME or vm/NAME", arg)
	}
	if name == "" {
		return "", errors.New("the name of a VM is empty")
	}
	return name, nil
}

// selected is a VM that was selected, or why it was not found.
type selected struct {
	namespace, name string
	vm              *api.VirtualMachine
	unchanged       string // why nothing was to do
	err             error
}

// vmName returns the name of a VM as kubectl prints it.
func vmName(name string) string { return "virtualmachine." + api.GroupName + "/" + name }

// findVMs reads the VMs. It fails as a whole only if they cannot be read at all. A VM that does not
// exist has the error in selected.err.
func (s *selection) findVMs(ctx context.Context, o *Options) ([]*selected, error) {
	namespace, err := o.NamespaceOrAll(s.allNamespaces)
	if err != nil {
		return nil, err
	}
	if len(s.names) > 0 {
		return s.findNamed(ctx, o, namespace), nil
	}
	client, err := o.VMs(namespace)
	if err != nil {
		return nil, err
	}
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: s.selector})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		printNothingFound(o.ErrOut, namespace, s.selector)
	}
	all := make([]*selected, len(list.Items))
	for i := range list.Items {
		vm := &list.Items[i]
		all[i] = &selected{namespace: vm.Namespace, name: vm.Name, vm: vm}
	}
	return all, nil
}

func (s *selection) findNamed(ctx context.Context, o *Options, namespace string) []*selected {
	all := make([]*selected, len(s.names))
	for i, name := range s.names {
		all[i] = &selected{namespace: namespace, name: name}
	}
	forEach(all, func(one *selected) {
		one.vm, one.err = getVM(ctx, o, namespace, one.name)
	}, nil)
	return all
}

// parallelRequests is how many VMs are asked about or changed at a time.
const parallelRequests = 8

// forEach calls do for all VMs, some at a time, and then, in their order, after.
func forEach(all []*selected, do, finish func(*selected)) {
	turns := make(chan struct{}, parallelRequests)
	done := make([]chan struct{}, len(all))
	for i := range all {
		done[i] = make(chan struct{})
	}
	go func() {
		for i, one := range all {
			turns <- struct{}{}
			go func() {
				do(one)
				<-turns
				close(done[i])
			}()
		}
	}()
	for i, one := range all {
		<-done[i]
		if finish != nil {
			finish(one)
		}
	}
}

// printNothingFound says that a list is empty, where it is not taken for output.
func printNothingFound(errOut io.Writer, namespace, selector string) {
	text := "No VMs found"
	if selector != "" {
		text += fmt.Sprintf(" with labels %q", selector)
	}
	if namespace != "" {
		text += fmt.Sprintf(" in namespace %q", namespace)
	}
	_, _ = fmt.Fprintln(errOut, text+".")
}
