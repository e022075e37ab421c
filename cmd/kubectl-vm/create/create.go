// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	apply "cloudnative.tw/drover/client/applyconfiguration/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/change"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/spec"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

type createOptions struct {
	*kit.Options
	flags   spec.Flags
	output  kit.OutputFlag
	dryRun  spec.DryRun
	wait    bool
	timeout time.Duration
}

// NewCreateCommand returns the command create.
func NewCreateCommand(o *kit.Options) *cobra.Command {
	c := &createOptions{Options: o}
	cmd := &cobra.Command{
		Use: "create NAME [--image IMAGE] [--cpu N] [--memory SIZE] [-- ARG...]", DisableFlagsInUseLine: true,
		GroupID: kit.GroupLifecycle,
		Short:   "Create a VM",
		Long: "Create a VM and, with --wait, follow it until it is ready.\n\n" +
			"An image is a reference such as nginx:1.29, which the driver docker runs as a container and the driver\n" +
			"qemu boots as a machine. With qemu it may also be a cloud image (cloud://debian/13), a URL (https://...,\n" +
			"with --checksum), a container disk (oci://registry/name:tag), or the path of a file on Drover's host.\n" +
			"Arguments after -- are passed to the image's entrypoint or, with --command, replace it. A VM with such\n" +
			"arguments is not started again after it has ended, unless --restart-policy says otherwise.\n" +
			"User-data goes into a Secret that is removed with the VM. --dry-run=client -o yaml prints a\n" +
			"manifest and creates nothing.",
		Example: o.FormatExamples("create web --image nginx:1.29 --port 8080:80 --probe 80 --wait",
			"create dev --driver qemu --image cloud://debian/13 --cpu 2 --memory 4G --disk 20G --ssh-key auto --port 2222:22",
			"create job --image python:3.13 --env LEVEL=3 -- python -c 'print(1)'",
			"create web --image nginx:1.29 --dry-run=client -o yaml > web.yaml"),
		Args: kit.RequireName(kit.WithOptionalCommand),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.flags.Args = args[1:]
			return c.createVM(cmd.Context(), args[0])
		},

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.flags.AddFlags(cmd)
	c.flags.AddRestartPolicy(cmd)
	c.output.AddFlag(cmd)
	c.dryRun.AddFlag(cmd)
	cmd.Flags().BoolVar(&c.wait, "wait", false, "wait until the VM is ready, and show its progress")
	cmd.Flags().DurationVar(&c.timeout, "timeout", vms.DefaultWait, "with --wait: how long to wait; 0 means no limit")
	return cmd
}

func (c *createOptions) createVM(ctx context.Context, arg string) error {
	name, err := vms.ParseName(arg)
	if err := errors.Join(err, c.flags.Check(), c.output.Check(), c.dryRun.Check()); err != nil {
		return err
	}
	wanted, secret, err := c.prepareObjects(ctx, name)
	if err != nil {
		return err
	}
	if c.dryRun.IsClient() {
		return c.printManifests(wanted, secret)
	}
	vm, err := c.createObjects(ctx, wanted, secret)
	if err != nil {
		return err
	}
	return c.finishCreation(ctx, vm)
}

// prepareObjects returns the VM that the flags describe, and its Secret, if it has one.
func (c *createOptions) prepareObjects(ctx context.Context, name string) (*apply.VirtualMachineApplyConfiguration, *corev1.Secret, error) {
	namespace, err := c.Namespace()
	if err != nil {
		return nil, nil, err
	}
	secretName := name + "-" + spec.UserDataKey
	if !c.dryRun.IsClient() {
		secretName += "-" + rand.String(5) // the Secret of an earlier VM with the same name may still exist
	}
	vm, err := c.flags.BuildVM(ctx, namespace, name, secretName)
	if err != nil {
		return nil, nil, err
	}
	data, err := c.flags.ReadSecretData(c.In)
	if err != nil {
		return nil, nil, err
	}
	if c.dryRun.IsClient() && *c.Config.Namespace == "" { // as with kubectl, a manifest has a namespace only if the user gives one
		vm.Namespace, namespace = nil, ""
	}
	return vm, newSecret(namespace, secretName, data), nil
}

// printManifests prints what a client dry run would create, in the chosen format.
func (c *createOptions) printManifests(vm *apply.VirtualMachineApplyConfiguration, secret *corev1.Secret) error {
	if !c.output.PrintsObjects() {
		_, err := fmt.Fprintf(c.Out, "%s created%s\n", vms.QualifiedName(*vm.Name), c.dryRun.Suffix())
		return err
	}
	var objects []runtime.Object
	if secret != nil {
		object, err := toUnstructured(secret)
		if err != nil {
			return err
		}
		objects = append(objects, object)
	}
	object, err := toUnstructured(vm)
	if err != nil {
		return err
	}
	return c.output.PrintObjects(c.Out, append(objects, object)...)
}

// toUnstructured converts an object for printing, without the field that only the API server fills in.
func toUnstructured(source any) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(source)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &object.Object); err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	return object, nil
}

// createObjects creates the Secret, if there is one, and then the VM. The Secret comes first, because
// the controller needs it at once. The VM owns the Secret, so that both are removed together.
func (c *createOptions) createObjects(ctx context.Context, wanted *apply.VirtualMachineApplyConfiguration, secret *corev1.Secret) (*api.VirtualMachine, error) {
	if err := checkNotExists(ctx, c.Options, *wanted.Namespace, *wanted.Name); err != nil {
		return nil, err
	}
	if secret != nil {
		if err := createSecret(ctx, c.Options, secret, c.dryRun.RequestOption()); err != nil {
			return nil, fmt.Errorf("create a Secret for the user-data: %w", err)
		}
	}
	client, err := c.VMs(*wanted.Namespace)
	if err != nil {
		return nil, err
	}
	vm, err := client.Apply(ctx, wanted, metav1.ApplyOptions{FieldManager: change.FieldManager, DryRun: c.dryRun.RequestOption()})
	if secret != nil && !c.dryRun.IsEnabled() {
		setOwnerOrDeleteSecret(ctx, c.Options, vm, secret, err)
	}
	return vm, err
}

// checkNotExists returns an error if the VM exists, since an apply would change it.
func checkNotExists(ctx context.Context, o *kit.Options, namespace, name string) error {
	_, err := vms.GetVM(ctx, o, namespace, name)
	switch {
	case err == nil:
		return fmt.Errorf("%s %q already exists in namespace %q", vms.Resource, name, namespace)
	case vms.IsNotFound(err), apierrors.IsForbidden(err): // a user who may not read VMs may still create one
		return nil
	}
	return err
}

// finishCreation prints the created VM, and waits for it if the user wants that.
func (c *createOptions) finishCreation(ctx context.Context, vm *api.VirtualMachine) error {
	if c.output.PrintsObjects() {
		if err := c.output.PrintObjects(c.Out, vm); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(c.Out, "%s created%s\n", vms.QualifiedName(vm.Name), c.dryRun.Suffix()); err != nil {
		return err
	}
	if !c.wait || c.dryRun.IsEnabled() {
		return nil
	}
	return c.awaitReady(ctx, vm)
}
