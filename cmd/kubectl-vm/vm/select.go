// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

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
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// Selection says which VMs a verb is about: by their names, or by --all or -l.
type Selection struct {
	Names         []string
	Selector      string
	All           bool
	AllNamespaces bool
}

// AddFlags adds the flags that select VMs to a command.
func (s *Selection) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.Selector, "selector", "l", "", "the VMs with these labels, for example app=web")
	cmd.Flags().BoolVar(&s.All, "all", false, "all VMs of the namespace")
	cmd.Flags().BoolVarP(&s.AllNamespaces, "all-namespaces", "A", false, "with --all or -l: those of all namespaces")
}

// NameOf returns the qualified name of a VM, with its namespace if VMs of all namespaces are selected.
func (s *Selection) NameOf(vm *api.VirtualMachine) string {
	if s.AllNamespaces {
		return QualifiedName(vm.Name) + " in namespace " + vm.Namespace
	}
	return QualifiedName(vm.Name)
}

// ParseNames sets the names from the arguments, and checks that they fit the flags.
func (s *Selection) ParseNames(args []string) error {
	for _, arg := range args {
		name, err := ParseName(arg)
		if err != nil {
			return err
		}
		if !slices.Contains(s.Names, name) {
			s.Names = append(s.Names, name)
		}
	}
	several := s.All || s.Selector != ""
	switch {
	case len(s.Names) > 0 && several:
		return errors.New("name the VMs or select them with --all or -l, not both")
	case len(s.Names) == 0 && !several:
		return errors.New("no VM is named: give NAME..., or --all or -l")
	case s.All && s.Selector != "":
		return errors.New("--all and -l exclude each other")
	case s.AllNamespaces && !several:
		return errors.New("-A needs --all or -l: a name is looked up in one namespace, see -n")
	}
	return nil
}

// ParseName returns the name of a VM. It also accepts the form that `list -o name` prints.
func ParseName(arg string) (string, error) {
	kind, name, qualified := strings.Cut(arg, "/")
	if !qualified {
		name = arg
	}
	kind = strings.TrimSuffix(strings.ToLower(kind), "."+api.GroupName)
	if qualified && !slices.Contains([]string{"vm", "vms", "virtualmachine", Resource}, kind) {
		return "", fmt.Errorf("%q is not the name of a VM: use NAME or vm/NAME", arg)
	}
	if name == "" {
		return "", errors.New("the name of a VM is empty")
	}
	return name, nil
}

// SelectedVM is a selected VM, and the result of the verb for this VM.
type SelectedVM struct {
	Namespace, Name string
	VM              *api.VirtualMachine
	Unchanged       string // why there was nothing to do
	Err             error  // why the VM was not found, or could not be changed
}

// QualifiedName returns the name of a VM as kubectl prints it.
func QualifiedName(name string) string { return "virtualmachine." + api.GroupName + "/" + name }

// FindVMs reads the selected VMs. If a named VM cannot be read, its SelectedVM.Err has the error.
func (s *Selection) FindVMs(ctx context.Context, o *kit.Options) ([]*SelectedVM, error) {
	namespace, err := o.NamespaceOrAll(s.AllNamespaces)
	if err != nil {
		return nil, err
	}
	if len(s.Names) > 0 {
		return s.findNamed(ctx, o, namespace), nil
	}
	client, err := o.VMs(namespace)
	if err != nil {
		return nil, err
	}
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: s.Selector})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		PrintNothingFound(o.ErrOut, namespace, s.Selector)
	}
	all := make([]*SelectedVM, len(list.Items))
	for i := range list.Items {
		vm := &list.Items[i]
		all[i] = &SelectedVM{Namespace: vm.Namespace, Name: vm.Name, VM: vm}
	}
	return all, nil
}

func (s *Selection) findNamed(ctx context.Context, o *kit.Options, namespace string) []*SelectedVM {
	all := make([]*SelectedVM, len(s.Names))
	for i, name := range s.Names {
		all[i] = &SelectedVM{Namespace: namespace, Name: name}
	}
	ForEach(all, func(selected *SelectedVM) {
		selected.VM, selected.Err = GetVM(ctx, o, namespace, selected.Name)
	}, nil)
	return all
}

// parallelRequests is how many VMs are read or changed at a time.
const parallelRequests = 8

// ForEach calls do for all VMs, several at a time. It calls finish, unless nil, for one VM after the other, in order.
func ForEach(all []*SelectedVM, do, finish func(*SelectedVM)) {
	turns := make(chan struct{}, parallelRequests)
	done := make([]chan struct{}, len(all))
	for i := range all {
		done[i] = make(chan struct{})
	}
	go func() {
		for i, selected := range all {
			turns <- struct{}{}
			go func() {
				do(selected)
				<-turns
				close(done[i])
			}()
		}
	}()
	for i, selected := range all {
		<-done[i]
		if finish != nil {
			finish(selected)
		}
	}
}

// PrintNothingFound prints on the error output that no VMs were found.
func PrintNothingFound(errOut io.Writer, namespace, selector string) {
	text := "No VMs found"
	if selector != "" {
		text += fmt.Sprintf(" with labels %q", selector)
	}
	if namespace != "" {
		text += fmt.Sprintf(" in namespace %q", namespace)
	}
	_, _ = fmt.Fprintln(errOut, text+".")
}
