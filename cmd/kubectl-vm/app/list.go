// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// listOptions are the flags of list.
type listOptions struct {
	*Options
	allNamespaces bool
	selector      string
	noHeaders     bool
	output        string
}

// NewListCommand returns the verb list.
func NewListCommand(o *Options) *cobra.Command {
	l := &listOptions{Options: o}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		GroupID: groupObserve,
		Short:   "List VMs",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return l.run(cmd.Context()) },
	}
	cmd.Flags().BoolVarP(&l.allNamespaces, "all-namespaces", "A", false, "list the VMs of all namespaces")
	cmd.Flags().StringVarP(&l.selector, "selector", "l", "", "list the VMs with these labels only, for example app=web")
	cmd.Flags().BoolVar(&l.noHeaders, "no-headers", false, "print no header")
	cmd.Flags().StringVarP(&l.output, "output", "o", "", "output format: wide, json, yaml, name, jsonpath=TEMPLATE")
	return cmd
}

func (l *listOptions) run(ctx context.Context) error {
	namespace := ""
	if !l.allNamespaces {
		var err error
		if namespace, err = l.Namespace(); err != nil {
			return err
		}
	}
	vms, err := l.VMs(namespace)
	if err != nil {
		return err
	}
	list, err := vms.List(ctx, metav1.ListOptions{LabelSelector: l.selector})
	if err != nil {
		return fmt.Errorf("list VMs: %w", err)
	}
	return l.print(list)
}

func (l *listOptions) print(list *api.VirtualMachineList) error {
	for i := range list.Items {
		vm := &list.Items[i]
		ready := "-"
		if c := meta.FindStatusCondition(vm.Status.Conditions, api.ConditionReady); c != nil {
			ready = string(c.Status)
		}
		ports := make([]string, 0, len(vm.Status.Ports))
		for _, p := range vm.Status.Ports {
			ports = append(ports, strconv.Itoa(int(p.HostPort)))
		}
		_, err := fmt.Fprintln(l.Out, vm.Name, cmp.Or(string(vm.Status.Phase), "-"), ready, strings.Join(ports, ","),
			duration.HumanDuration(l.Clock.Since(vm.CreationTimestamp.Time)))
		if err != nil {
			return err
		}
	}
	return nil
}
