// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned/scheme"
)

// resourceVMs is the name of VirtualMachines in paths and errors.
const resourceVMs = "virtualmachines"

// getVM returns a VM of a namespace.
func getVM(ctx context.Context, o *Options, namespace, name string) (*api.VirtualMachine, error) {
	client, err := o.VMs(namespace)
	if err != nil {
		return nil, err
	}
	vm, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, describeVMError(err, namespace, name)
	}
	return vm, nil
}

// notFoundError means that there is no VM of a name.
type notFoundError struct{ namespace, name string }

// Error implements error.
func (e *notFoundError) Error() string {
	return fmt.Sprintf("%s %q not found in namespace %q", resourceVMs, e.name, e.namespace)
}

// isNotFound reports whether an error means that a VM does not exist, in a cluster that knows VMs.
func isNotFound(err error) bool {
	missing := (*notFoundError)(nil)
	return errors.As(err, &missing)
}

// describeVMError says what is not found, and where.
func describeVMError(err error, namespace, name string) error {
	if apierrors.IsNotFound(err) && !isMissingAPI(err) {
		return &notFoundError{namespace: namespace, name: name}
	}
	return err
}

// getObject returns a VM as the API server has it, with fields that this version of the
// program does not know.
func getObject(ctx context.Context, o *Options, namespace, name string) (*unstructured.Unstructured, error) {
	c, err := o.vmClient()
	if err != nil {
		return nil, err
	}
	raw, err := rawOf(c.Get().Namespace(namespace).Resource(resourceVMs).Name(name).Do(ctx))
	if err != nil {
		return nil, describeVMError(err, namespace, name)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("read the answer of the API server: %w", err)
	}
	return object, nil
}

// rawOf returns an answer as it is, or the error that it describes, which Raw alone does not read.
func rawOf(answer rest.Result) ([]byte, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	return answer.Raw()
}

// listObjects returns VMs as the API server has them.
func listObjects(ctx context.Context, o *Options, namespace string, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	c, err := o.vmClient()
	if err != nil {
		return nil, err
	}
	raw, err := rawOf(c.Get().Namespace(namespace).Resource(resourceVMs).VersionedParams(&opts, scheme.ParameterCodec).Do(ctx))
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("read the answer of the API server: %w", err)
	}
	return list, nil
}

// listedVM has the fields of a VM that tables need. Without the others, and without a second
// pass for the API version, which the generated client makes, a list is read in half the time.
type listedVM struct {
	Metadata struct {
		Namespace         string       `json:"namespace"`
		Name              string       `json:"name"`
		CreationTimestamp metav1.Time  `json:"creationTimestamp"`
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		Generation        int64        `json:"generation"`
	} `json:"metadata"`
	Spec struct {
		Action   api.Action          `json:"action"`
		Resource corev1.ResourceList `json:"resource"`
		Driver   string              `json:"driver"`
		Image    *api.Image          `json:"image"`
		Ports    []api.Port          `json:"ports"`
	} `json:"spec"`
	Status api.VirtualMachineStatus `json:"status"`
}

func (l *listedVM) vm() api.VirtualMachine {
	m := &l.Metadata
	return api.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		},
		Spec:   api.VirtualMachineSpec{Action: l.Spec.Action, Resource: l.Spec.Resource, Driver: l.Spec.Driver, Image: l.Spec.Image, Ports: l.Spec.Ports},
		Status: l.Status,
	}
}

// listForTable returns VMs with the fields of listedVM alone.
func listForTable(ctx context.Context, o *Options, namespace string, opts metav1.ListOptions) ([]api.VirtualMachine, error) {
	c, err := o.vmClient()
	if err != nil {
		return nil, err
	}
	stream, err := c.Get().Namespace(namespace).Resource(resourceVMs).VersionedParams(&opts, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	vms, err := readList(stream)
	if err != nil {
		return nil, fmt.Errorf("read the answer of the API server: %w", err)
	}
	return vms, nil
}

// errNoList means that an answer is not a list.
var errNoList = errors.New("it is not a list")

func readList(r io.Reader) ([]api.VirtualMachine, error) {
	var list struct {
		Items []listedVM `json:"items"`
	}
	if err := json.NewDecoder(r).Decode(&list); err != nil {
		return nil, err
	}
	if list.Items == nil {
		return nil, errNoList
	}
	vms := make([]api.VirtualMachine, len(list.Items))
	for i := range list.Items {
		vms[i] = list.Items[i].vm()
	}
	return vms, nil
}

// describeFor returns what to print about an error of one VM of several.
func describeFor(o *Options, name string, err error) string {
	if isNotFound(err) {
		return err.Error()
	}
	return name + ": " + o.describeError(err)
}

// uidsPage is how many VMs are read at a time.
const uidsPage = 500

// readUIDs returns the UIDs of all VMs of the cluster, from the API itself.
func readUIDs(ctx context.Context, o *Options) (map[types.UID]bool, error) {
	c, err := o.vmClient()
	if err != nil {
		return nil, err
	}
	uids := map[types.UID]bool{}
	for opts := (metav1.ListOptions{Limit: uidsPage}); ; {
		raw, err := rawOf(c.Get().Resource(resourceVMs).VersionedParams(&opts, scheme.ParameterCodec).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx))
		if err != nil {
			return nil, err
		}
		var page metav1.PartialObjectMetadataList
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("read the VMs: %w", err)
		}
		if page.Kind != "PartialObjectMetadataList" {
			return nil, fmt.Errorf("the API server answers with a %q", page.Kind)
		}
		for i := range page.Items {
			uids[page.Items[i].UID] = true
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return uids, nil
		}
	}
}
