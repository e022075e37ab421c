// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	apply "cloudnative.tw/drover/client/applyconfiguration/cloudnative/v1alpha1"
)

// settleTimeout is how long it may take to give a Secret its owner, or to remove it.
const settleTimeout = 10 * time.Second

type createOptions struct {
	*Options
	vmFlags
	output  outputFlag
	dryRun  dryRun
	wait    bool
	timeout time.Duration
}

// NewCreateCommand returns the verb create.
func NewCreateCommand(o *Options) *cobra.Command {
	c := &createOptions{Options: o}
	cmd := &cobra.Command{
		Use: "create NAME [--image IMAGE] [--cpu N] [--memory SIZE] [-- ARG...]", DisableFlagsInUseLine: true,
		GroupID: groupLifecycle,
		Short:   "Create a VM",
		Long: "Create a VM and, with --wait, follow it until it is ready.\n\n" +
			"An image is a reference such as nginx:1.29, which runs as a container under docker and boots as a\n" +
			"machine under qemu. Under qemu it may also be the name of a cloud image such as cloud://debian/13,\n" +
			"https://... with a --checksum, oci://registry/name:tag, or the path of a file on Drover's host.\n" +
			"What follows -- are arguments for the image's entrypoint, or with --command what runs in its place;\n" +
			"such a VM is for one job, and is not started again when it has ended, unless --restart-policy says so.\n" +
			"User-data goes into a Secret that is removed with the VM. --dry-run=client -o yaml prints a\n" +
			"manifest and creates nothing.",
		Example: o.formatExamples("create web --image nginx:1.29 --port 8080:80 --probe 80 --wait",
			"create dev --driver qemu --image cloud://debian/13 --cpu 2 --memory 4G --disk 20G --ssh-key auto --port 2222:22",
			"create job --image python:3.13 --env LEVEL=3 -- python -c 'print(1)'",
			"create web --image nginx:1.29 --dry-run=client -o yaml > web.yaml"),
		Args: oneName(mayHaveCommand),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.words = args[1:]
			return c.run(cmd.Context(), args[0])
		},

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.addFlags(cmd)
	cmd.Flags().StringVar(&c.restartPolicy, "restart-policy", "", "Always (default), OnFailure or Never (default if there are words behind --): what happens when the server ends by itself")
	_ = cmd.RegisterFlagCompletionFunc("restart-policy", cobra.FixedCompletions(
		[]string{string(api.RestartAlways), string(api.RestartOnFailure), string(api.RestartNever)}, cobra.ShellCompDirectiveNoFileComp))
	c.output.add(cmd)
	c.dryRun.addFlag(cmd)
	cmd.Flags().BoolVar(&c.wait, "wait", false, "wait until the VM is ready, and show its progress")
	cmd.Flags().DurationVar(&c.timeout, "timeout", defaultWait, "with --wait: how long to wait, 0 without an end")
	return cmd
}

func (c *createOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.image, "image", "", "what the VM boots; the driver's default if there is none")
	f.StringVar(&c.checksum, "checksum", "", "digest of the image, sha256: and 64 digits")
	f.StringVar(&c.cpu, "cpu", "1", "number of CPUs, for example 2 or 500m")
	f.StringVar(&c.memory, "memory", "1G", "memory, for example 4G or 512Mi")
	f.StringVar(&c.disk, "disk", "", "size of the root disk, for example 40G; the driver's default if there is none")
	f.StringArrayVarP(&c.ports, "port", "p", nil, "port of the host that leads to the VM, may be repeated: "+portSyntax)
	f.StringArrayVar(&c.sshKeys, "ssh-key", nil, "who may log in, may be repeated: auto for your own public keys, the file of a public key, or a key")
	f.StringVar(&c.userData, "user-data", "", "file for cloud-init in the guest; - is standard input")
	f.StringVar(&c.networkData, "network-data", "", "file with cloud-init's network configuration; - is standard input")
	f.StringVar(&c.driver, "driver", "", "driver that runs the VM, for example docker or qemu; the controller's first if there is none")
	f.StringArrayVar(&c.env, "env", nil, "environment variable of a container image, may be repeated: NAME=VALUE. Everyone who may read the VM can read it")
	f.StringVar(&c.workingDir, "working-dir", "", "folder in which a container image's command begins; by default the image says it")
	f.BoolVar(&c.isCommand, "command", false, "what follows -- replaces the entrypoint of a container image, and is not its arguments")
	f.Int32Var(&c.probe, "probe", 0, "port of the VM that must answer before it is ready")
	f.StringSliceVarP(&c.labels, "labels", "l", nil, "labels, for example app=web,tier=front")
	_ = cmd.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions(knownDrivers, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("ssh-key", cobra.FixedCompletions([]string{keyAuto}, cobra.ShellCompDirectiveDefault))
	for _, name := range []string{"image", "checksum", "cpu", "memory", "disk", "port", "labels", "probe", "env", "working-dir"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

func (c *createOptions) run(ctx context.Context, arg string) error {
	name, err := parseName(arg)
	if err := errors.Join(err, c.check(), c.output.check(), c.dryRun.check()); err != nil {
		return err
	}
	wanted, secret, err := c.prepareObjects(ctx, name)
	if err != nil {
		return err
	}
	if c.dryRun.client() {
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
	secret := name + "-" + userDataKey
	if !c.dryRun.client() {
		secret += "-" + rand.String(5) // the Secret of an earlier VM of that name may be about to go
	}
	vm, err := c.buildVM(ctx, namespace, name, secret)
	if err != nil {
		return nil, nil, err
	}
	data, err := c.secretData(c.Options)
	if err != nil {
		return nil, nil, err
	}
	if c.dryRun.client() && *c.Config.Namespace == "" { // a manifest names no namespace unless the user does, as with kubectl
		vm.Namespace, namespace = nil, ""
	}
	return vm, newSecret(namespace, secret, data), nil
}

// newSecret returns the Secret with the data of a VM, or nil if there are none.
func newSecret(namespace, name string, data map[string][]byte) *corev1.Secret {
	if len(data) == 0 {
		return nil
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       data,
	}
}

// printManifests prints what would be sent.
func (c *createOptions) printManifests(vm *apply.VirtualMachineApplyConfiguration, secret *corev1.Secret) error {
	if !c.output.printsObjects() {
		_, err := fmt.Fprintf(c.Out, "%s created%s\n", vmName(*vm.Name), c.dryRun.suffix())
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
	return c.output.print(c.Options, append(objects, object)...)
}

// toUnstructured returns an object without the fields that only the API server fills in.
func toUnstructured(source any) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(source)
	if err != nil {
		return nil, fmt.Errorf("write the manifest: %w", err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &object.Object); err != nil {
		return nil, fmt.Errorf("write the manifest: %w", err)
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	return object, nil
}

// createObjects creates the Secret, if there is one, and the VM. The Secret is first, because the
// controller needs it at once; the VM owns it, and is removed with it.
func (c *createOptions) createObjects(ctx context.Context, wanted *apply.VirtualMachineApplyConfiguration, secret *corev1.Secret) (*api.VirtualMachine, error) {
	if err := c.checkAbsence(ctx, *wanted.Namespace, *wanted.Name); err != nil {
		return nil, err
	}
	if secret != nil {
		if err := c.createSecret(ctx, secret); err != nil {
			return nil, fmt.Errorf("create a Secret for the user-data: %w", err)
		}
	}
	vms, err := c.VMs(*wanted.Namespace)
	if err != nil {
		return nil, err
	}
	vm, err := vms.Apply(ctx, wanted, metav1.ApplyOptions{FieldManager: fieldManager, DryRun: c.dryRun.options()})
	if secret != nil && !c.dryRun.enabled() {
		c.settleSecret(ctx, vm, secret, err)
	}
	return vm, err
}

// settleSecret makes the VM the owner of the Secret, or removes that if the API server has refused
// the VM. After any other failure the VM may exist, and need it. All of that is done after Ctrl-C
// too.
func (c *createOptions) settleSecret(ctx context.Context, vm *api.VirtualMachine, secret *corev1.Secret, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	problem := ""
	var err error
	switch {
	case failed == nil:
		problem, err = "will not be removed with the VM", c.ownSecret(ctx, vm, secret)
	case isRefusal(failed):
		problem, err = "was created, and is not needed", c.deleteSecret(ctx, secret)
	default:
		problem, err = "was created, and is needed only if the VM was too", errUnknownOutcome
	}
	if err != nil {
		c.printWarning(fmt.Sprintf("Secret %s %s: %s", secret.Name, problem, c.describe(err)))
	}
}

// errUnknownOutcome means that a request may have been carried out.
var errUnknownOutcome = errors.New("the API server has not answered")

// isRefusal reports whether the API server has answered that it did nothing.
func isRefusal(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500
}

// checkAbsence refuses to change a VM that exists: an apply would.
func (c *createOptions) checkAbsence(ctx context.Context, namespace, name string) error {
	_, err := c.GetVM(ctx, namespace, name)
	missing := (*notFoundError)(nil)
	switch {
	case err == nil:
		return fmt.Errorf("%s %q already exists in namespace %q", resourceVMs, name, namespace)
	case errors.As(err, &missing), apierrors.IsForbidden(err): // who may only create is answered by the apply
		return nil
	}
	return err
}

func (c *createOptions) createSecret(ctx context.Context, secret *corev1.Secret) error {
	core, err := c.Core()
	if err != nil {
		return err
	}
	opts := metav1.CreateOptions{FieldManager: fieldManager, DryRun: c.dryRun.options()}
	return core.Post().Namespace(secret.Namespace).Resource("secrets").VersionedParams(&opts, metav1.ParameterCodec).Body(secret).Do(ctx).Error()
}

// deleteSecret removes the Secret of a VM that was not created.
func (c *createOptions) deleteSecret(ctx context.Context, secret *corev1.Secret) error {
	core, err := c.Core()
	if err != nil {
		return err
	}
	return core.Delete().Namespace(secret.Namespace).Resource("secrets").Name(secret.Name).Do(ctx).Error()
}

// ownSecret makes the VM the owner of the Secret, which is then removed with it.
func (c *createOptions) ownSecret(ctx context.Context, vm *api.VirtualMachine, secret *corev1.Secret) error {
	core, err := c.Core()
	if err != nil {
		return err
	}
	owner := metav1.OwnerReference{APIVersion: api.SchemeGroupVersion.String(), Kind: "VirtualMachine", Name: vm.Name, UID: vm.UID}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{owner}}})
	if err != nil {
		return err
	}
	return core.Patch(types.MergePatchType).Namespace(secret.Namespace).Resource("secrets").Name(secret.Name).Param("fieldManager", fieldManager).Body(body).Do(ctx).Error()
}

// finishCreation prints what was created, and waits if that was asked for.
func (c *createOptions) finishCreation(ctx context.Context, vm *api.VirtualMachine) error {
	if c.output.printsObjects() {
		if err := c.output.print(c.Options, vm); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(c.Out, "%s created%s\n", vmName(vm.Name), c.dryRun.suffix()); err != nil {
		return err
	}
	if !c.wait || c.dryRun.enabled() {
		return nil
	}
	return c.awaitReady(ctx, vm)
}
