// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/change"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// secretTimeout is how long it may take to give a Secret its owner, or to remove it.
const secretTimeout = 10 * time.Second

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

// setOwnerOrDeleteSecret makes the VM the owner of the Secret, or deletes the Secret if the API server has
// refused the VM. After any other failure it keeps the Secret, since the VM may exist and need it. It
// does so even after Ctrl-C. createErr is the error of the creation of the VM.
func setOwnerOrDeleteSecret(ctx context.Context, o *kit.Options, vm *api.VirtualMachine, secret *corev1.Secret, createErr error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), secretTimeout)
	defer cancel()
	problem := ""
	var err error
	switch {
	case createErr == nil:
		problem, err = "will not be removed with the VM", setSecretOwner(ctx, o, vm, secret)
	case isRefusal(createErr):
		problem, err = "was created, but is not needed", deleteSecret(ctx, o, secret)
	default:
		problem, err = "was created, but is needed only if the VM was also created", errUnknownOutcome
	}
	if err != nil {
		o.PrintWarning(fmt.Sprintf("Secret %s %s: %s", secret.Name, problem, o.DescribeError(err)))
	}
}

// errUnknownOutcome means that a request may have been carried out.
var errUnknownOutcome = errors.New("the API server has not answered")

// isRefusal reports whether the API server has refused a request, and so has done nothing.
func isRefusal(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500
}

// createSecret creates the Secret, or only checks it with a dry run.
func createSecret(ctx context.Context, o *kit.Options, secret *corev1.Secret, dryRun []string) error {
	core, err := o.Core()
	if err != nil {
		return err
	}
	opts := metav1.CreateOptions{FieldManager: change.FieldManager, DryRun: dryRun}
	return core.Post().Namespace(secret.Namespace).Resource("secrets").VersionedParams(&opts, metav1.ParameterCodec).Body(secret).Do(ctx).Error()
}

// deleteSecret removes the Secret of a VM that was not created.
func deleteSecret(ctx context.Context, o *kit.Options, secret *corev1.Secret) error {
	core, err := o.Core()
	if err != nil {
		return err
	}
	return core.Delete().Namespace(secret.Namespace).Resource("secrets").Name(secret.Name).Do(ctx).Error()
}

// setSecretOwner makes the VM the owner of the Secret, so that the Secret is removed with the VM.
func setSecretOwner(ctx context.Context, o *kit.Options, vm *api.VirtualMachine, secret *corev1.Secret) error {
	core, err := o.Core()
	if err != nil {
		return err
	}
	owner := metav1.OwnerReference{APIVersion: api.SchemeGroupVersion.String(), Kind: "VirtualMachine", Name: vm.Name, UID: vm.UID}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{owner}}})
	if err != nil {
		return err
	}
	return core.Patch(types.MergePatchType).Namespace(secret.Namespace).Resource("secrets").Name(secret.Name).Param("fieldManager", change.FieldManager).Body(body).Do(ctx).Error()
}
